#!/usr/bin/env python3
"""Prints the coefficients of common/attention/exp2.h: for each degree the polynomial p with p(0) = 1 whose largest relative
error |p(f) / 2^f - 1| over 0 <= f <= 1 is least, and that error.

Remez' exchange. Of n free coefficients the best polynomial's error has n + 1 extrema of one size and alternating sign. So: guess
where they are, solve for the coefficients and the size, look where the extrema of that polynomial are, and again. Coefficients
are rounded to floats one after the other, and each time those that are left make up for it.
"""
import math
import struct

DEGREES = (2, 3, 4, 5)
GRID = 4000
ROUNDS = 6


def error(p, f):
    """p(f) / 2^f - 1 of the coefficients 1, p[0], p[1], ..."""
    value = 0.0
    for coefficient in reversed(p):
        value = (value + coefficient) * f
    return (1 + value) / 2**f - 1


def solved(rows):
    """x of a linear system whose rows are [coefficients ..., right-hand side]: Gauss and Jordan, with pivots."""
    rows = [list(row) for row in rows]
    for k in range(len(rows)):
        pivot = max(range(k, len(rows)), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(len(rows)):
            if i != k:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k])]
    return [row[-1] / row[k] for k, row in enumerate(rows)]


def extrema(p):
    """Of each stretch of (0, 1] on which the error has one sign, the place where it is largest."""
    found = []
    for f in (i / GRID for i in range(1, GRID + 1)):
        if not found or error(p, f) * error(p, found[-1]) < 0:
            found.append(f)
        elif abs(error(p, f)) > abs(error(p, found[-1])):
            found[-1] = f
    return found


def best(degree, fixed=()):
    """[p[0], ...] that begins with `fixed`, and the size of its error."""
    fixed = list(fixed)
    free = range(len(fixed) + 1, degree + 1)
    places = [(1 - math.cos(math.pi * (i + 1) / (len(free) + 1))) / 2 for i in range(len(free) + 1)]
    for _ in range(ROUNDS):
        # p(f) = 2^f + (-1)^i e 2^f at the i-th place: linear in the free coefficients and e.
        *p, e = solved([[f**k for k in free] + [(-1) ** (i + 1) * 2**f, -error(fixed, f) * 2**f] for i, f in enumerate(places)])
        p = fixed + p
        places = extrema(p)[-len(places):]
    return p, abs(e)


def to_float(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def rounded(degree):
    """The same in floats."""
    fixed = []
    while len(fixed) < degree:
        fixed.append(to_float(best(degree, fixed)[0][len(fixed)]))
    return fixed


def lines():
    for degree in DEGREES:
        numbers = ", ".join(["1", *(f"{coefficient:.9g}f" for coefficient in rounded(degree))])
        yield f"{{{numbers}}},  // degree {degree}: {best(degree)[1]:.2e}"


if __name__ == "__main__":
    print("\n".join(lines()))
