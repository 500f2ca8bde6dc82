"""exp2_coefficients.py: the polynomials are the best there are, and exp2.h has them."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import exp2_coefficients as script

HEADER = pathlib.Path(__file__).parents[2] / "attention" / "exp2.h"


class Coefficients(unittest.TestCase):
    def test_the_header_has_them(self):
        header = " ".join(HEADER.read_text(encoding="utf-8").split())
        for line in script.lines():
            self.assertIn(" ".join(line.split()), header)

    def test_errors_alternate_between_two_bounds(self):
        # De la Vallee Poussin: n + 1 errors of alternating sign, none below e, say that no polynomial is better than e.
        for degree in script.DEGREES:
            p, e = script.best(degree)
            errors = [script.error(p, f) for f in script.extrema(p)]
            self.assertEqual(degree + 1, len(errors))
            for before, after in zip(errors, errors[1:]):
                self.assertLess(before * after, 0)
            for value in errors:
                self.assertAlmostEqual(1, abs(value) / e, delta=1e-6)

    def test_degree_1_by_hand(self):
        # (1 + c f) / 2^f is largest at f = 1 / ln 2 - 1 / c and smallest at f = 1. With c = 0.92356: 1 + 0.03822 and 1 - 0.03822.
        p, e = script.best(1)
        self.assertAlmostEqual(0.92356, p[0], places=4)
        self.assertAlmostEqual(0.03822, e, places=5)

    def test_rounding_costs_less_than_a_float_can_tell(self):
        for degree in script.DEGREES:
            p = script.rounded(degree)
            self.assertTrue(all(script.to_float(coefficient) == coefficient for coefficient in p))
            largest = max(abs(script.error(p, f)) for f in script.extrema(p))
            self.assertLess(largest, script.best(degree)[1] + 2**-25)  # which p's own last rounding exceeds


if __name__ == "__main__":
    unittest.main()
