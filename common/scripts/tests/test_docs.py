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
