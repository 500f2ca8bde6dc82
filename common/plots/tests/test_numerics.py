"""plots/numerics.py: a picture of what numerics writes, and bad input answered in one sentence."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import numerics

ROW = {"law": "normal", "tau": 0, "rows": 0.1, "warps": 0.5, "bf16": 2e-3, "fp16": 3e-4}
RESULTS = {"curves": {"x": [-1, -0.5, 0], "ways": [{"name": "degree 3", "relative": [0, -8e-5, 0], "bf16": [0, 2e-3, 0]}]},
           "rescaling": [ROW, ROW | {"tau": 8, "rows": 0}, ROW | {"law": "outliers"}]}  # fmt: skip


class Numerics(unittest.TestCase):
    def run_on(self, results):
        with tempfile.TemporaryDirectory() as folder:
            source, picture = pathlib.Path(folder) / "in.json", pathlib.Path(folder) / "out.png"
            source.write_text(json.dumps(results), encoding="utf-8")
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                status = numerics.main([str(source), str(picture)])
            return status, errors.getvalue(), picture.read_bytes() if picture.exists() else b""

    def test_draws(self):
        status, errors, picture = self.run_on(RESULTS)
        self.assertEqual((status, errors), (0, ""))
        self.assertTrue(picture.startswith(b"\x89PNG"))

    def test_laws_keep_their_points_in_order(self):
        self.assertEqual({"normal": ([0, 8], [0.1, 0]), "outliers": ([0], [0.1])}, numerics.by_law(RESULTS["rescaling"], "rows"))

    def test_bad_input(self):
        way = RESULTS["curves"]["ways"][0]
        for bad in ({}, [], RESULTS | {"rescaling": []}, RESULTS | {"rescaling": [{"law": "normal"}]},
                    RESULTS | {"rescaling": [ROW | {"tau": "8"}]}, RESULTS | {"rescaling": [ROW | {"law": 1}]},
                    RESULTS | {"rescaling": [ROW | {"bf16": None}]}, RESULTS | {"curves": {"x": [0], "ways": [way]}},
                    RESULTS | {"curves": {"x": [-1, 0, 1], "ways": []}}):  # fmt: skip
            status, errors, picture = self.run_on(bad)
            self.assertEqual((status, len(errors.splitlines()), picture), (2, 1, b""), bad)


if __name__ == "__main__":
    unittest.main()
