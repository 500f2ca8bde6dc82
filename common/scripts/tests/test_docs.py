"""docs.py on results of bench: a column for each problem, ceilings, and figures that differ are told."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import docs


def row(name, problem, tflops, **more):
    return {"stage": "02", "rung": "b", "name": name, "pass": "forward", "status": "verified", "problem": {"text": problem},
            "l2": "warm", "tflops": tflops, "roof_fraction": tflops / 800} | more  # fmt: skip


RESULTS = {
    "machine": "NVIDIA H200", "clock_mhz": 1980, "command": "bench", "commit": "abc",
    "ceilings": {"copy": {"per_second": 4.3e12, "unit": "B/s", "source": "measured"}},
    "rows": [row("x", "B=4 N=4096 d=128 none", 80.04), row("x", "B=16 N=1024 d=128 causal", 40.0),
             row("y", "B=16 N=1024 d=128 causal", 44.0, **{"pass": "backward"}), row("z", "B=4 N=4096 d=128 none", 1.0, status="wrong")],
}  # fmt: skip


class Tables(unittest.TestCase):
    def test_speeds_have_a_column_for_each_problem(self):
        lines = docs.table(RESULTS, {}).splitlines()
        self.assertEqual("| rung | pass | B=4 N=4096 none | B=16 N=1024 causal |", lines[0])
        self.assertEqual(["| 02b x | forward | 80 (10 %) | 40 (5 %) |", "| 02b y | backward | - | 44 (5.5 %) |", ""], lines[2:5])
        self.assertIn("d=128", lines[5])
        self.assertIn("commit abc", lines[5])

    def test_pass_and_stages_choose(self):
        self.assertNotIn("02b x", docs.table(RESULTS, {"pass": "backward"}))
        self.assertNotIn("02b y", docs.table(RESULTS, {"pass": "forward"}))

    def test_ceilings(self):
        self.assertIn("| copy | 4.3 TB | measured |", docs.table(RESULTS, {"show": "ceilings"}).splitlines())


if __name__ == "__main__":
    unittest.main()
