#!/usr/bin/env python3
"""Draws how wrong 2^x by polynomial is, before and after rounding to bf16, and what conditional rescaling saves and costs.

    numerics.py results/exp2_and_rescaling.json results/exp2_and_rescaling.png

The results file is what `numerics` writes. Exit: 0 drawn, 2 bad input (said in one sentence).
"""

import math
import sys

import picture
from picture import BadResults, read_json

COLORS = {"degree 2": "#8a8a8a", "degree 3": "#1f4e8c", "degree 4": "#b3261e", "degree 5": "#3f7d3f", "nearest float": "#000000"}
LAWS = ("#1f4e8c", "#3f7d3f", "#b3261e", "#8a8a8a")


def read_results(path):
    results = read_json(path)
    try:
        numbers = list(results["curves"]["x"])
        for way in results["curves"]["ways"]:
            if len(way["relative"]) != len(way["bf16"]) or len(way["relative"]) != len(results["curves"]["x"]):
                raise BadResults(f"{path} has not one error of {way['name']} for each x.")
            numbers += way["relative"] + way["bf16"]
        for row in results["rescaling"]:
            numbers += [row[key] for key in ("tau", "rows", "warps", "bf16", "fp16")]
            if not isinstance(row["law"], str):
                raise BadResults(f"{path} has {row['law']!r} where the name of a law belongs.")
    except (KeyError, TypeError) as error:
        raise BadResults(f"{path} is not a results file of numerics: {error}.") from error
    if not results["rescaling"] or not results["curves"]["ways"]:
        raise BadResults(f"{path} has nothing to draw.")
    for number in numbers:
        if type(number) not in (int, float) or not math.isfinite(number):
            raise BadResults(f"{path} has {number!r} where a number belongs.")
    return results


def by_law(rows, key):
    """{law: ([tau, ...], [row[key], ...])}"""
    curves = {}
    for row in rows:
        taus, values = curves.setdefault(row["law"], ([], []))
        taus.append(row["tau"])
        values.append(row[key])
    return curves


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ((before, after), (share, error)) = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    x = results["curves"]["x"]
    for way in results["curves"]["ways"]:
        color = COLORS.get(way["name"])
        # Exact at integers: nothing to draw on a logarithmic axis.
        before.plot(x, [abs(value) or None for value in way["relative"]], color=color, label=way["name"], linewidth=1)
        if way["name"] in ("degree 2", "degree 3", "nearest float"):
            after.plot(x, way["bf16"], ".", color=color, markersize={"degree 2": 3, "degree 3": 6}.get(way["name"], 3),
                       label=way["name"])  # fmt: skip
    before.set_yscale("log")
    before.set_ylim(1e-9, 1)
    before.set_xlabel("x")
    before.set_title("2^x: relative error, fp32", fontsize=10)
    after.set_xlabel("x")
    after.set_title("the same, rounded to bf16", fontsize=10)
    for (law, (taus, rows)), (_, warps), color in zip(by_law(results["rescaling"], "rows").items(),
                                                      by_law(results["rescaling"], "warps").values(), LAWS):  # fmt: skip
        share.plot(taus, warps, "o-", color=color, markersize=3, label=law)
        share.plot(taus, rows, "o--", color=color, markersize=3, linewidth=1)
    share.set_xlabel("tau")
    share.set_title("share of key blocks that rescale: of warps (solid), of rows (dashed)", fontsize=10)
    for type_, style in (("bf16", "o-"), ("fp16", "o--")):
        for (law, (taus, errors)), color in zip(by_law(results["rescaling"], type_).items(), LAWS):
            error.plot(taus, errors, style, color=color, markersize=3, linewidth=1, label=law if type_ == "bf16" else None)
    error.set_yscale("log")
    error.set_ylim(bottom=1e-5, top=1e-1)
    error.set_xlabel("tau")
    error.set_title("error of O, the largest of all rows: W in bf16 (solid), fp16 (dashed)", fontsize=10)
    for panel in (before, after, share, error):
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    picture.save(figure, path)


def main(arguments):
    return picture.main(arguments, __doc__, read_results, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
