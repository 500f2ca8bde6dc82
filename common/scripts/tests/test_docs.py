"""docs.py: a table says what its results file holds and where that comes from, and a figure that moved is noticed."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import docs

POINTS = {"command": "stage_02_traffic", "commit": "abc", "problem": "N=8",
          "points": [{"Bc": 4, "M": 32, "elements": 192}, {"Bc": 8, "M": 64, "elements": 112}]}  # fmt: skip


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


class Docs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(setattr, docs, "ROOT", docs.ROOT)
        docs.ROOT = folder.name
        self.readme = pathlib.Path(folder.name) / "README.md"
        self.results = pathlib.Path(folder.name) / "traffic.json"
        self.results.write_text(json.dumps(POINTS))
        self.readme.write_text("<!-- table: traffic.json -->\n<!-- end -->\n")

    def run_docs(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            status = docs.main(list(arguments))
        return status, errors.getvalue()

    def test_key_tiles(self):
        self.assertEqual((0, ""), self.run_docs())
        text = self.readme.read_text()
        self.assertIn("| 4 | 32 | 192 |\n| 8 | 64 | 112 |\n", text)
        self.assertIn("emulated; N=8; `stage_02_traffic`, commit abc; counted.", text)

    def test_another_figure_or_commit_is_noticed(self):
        self.run_docs()
        self.assertEqual((0, ""), self.run_docs("--check"))
        for changed in ({**POINTS, "commit": "def"}, {**POINTS, "points": POINTS["points"][:1]}):
            self.results.write_text(json.dumps(changed))
            status, errors = self.run_docs("--check")
            self.assertEqual(1, status)
            self.assertIn("README.md", errors)

    def test_a_file_without_its_origin_is_refused(self):
        self.results.write_text(json.dumps({key: value for key, value in POINTS.items() if key != "commit"}))
        status, errors = self.run_docs()
        self.assertEqual(1, status)
        self.assertIn("KeyError('commit')", errors)


if __name__ == "__main__":
    unittest.main()
