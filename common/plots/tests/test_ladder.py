"""plots/ladder.py: figures are summed right, a picture is written whole, and bad input is answered in one sentence."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import ladder


def tensor(*sizes):
    return dict(zip(("requested_read", "requested_written", "distinct_read", "distinct_written"), sizes))


VERIFIED = {"stage": "02", "rung": "b", "name": "split-KV warps", "pass": "forward", "status": "verified", "reason": "",
            "errors": {}, "bytes": {"source": "counted", "tensors": {"Q": tensor(700, 0, 100, 0), "O": tensor(20, 30, 2, 3)}},
            "flops": 10, "exps": 2, "time_ms": 0.5, "tflops": 312.5, "ceiling_fraction": 0.4}  # fmt: skip
EMULATED = {**VERIFIED, "time_ms": None, "tflops": None, "ceiling_fraction": None}
SKIPPED = {"stage": "00", "rung": "a", "pass": "backward", "status": "skipped", "reason": "no backward", "bytes": {}}
WRONG = {**EMULATED, "status": "wrong", "reason": "O(0, 0, 3, 1) is NaN"}


def results(*rows, machine="software GPU (emulated)"):
    return {"schema": 1, "machine": machine, "problem": {"B": 1, "Nq": 64}, "rows": list(rows)}


class Ladder(unittest.TestCase):
    def draw(self, text, name="ladder.png"):
        """Exit code, error text, the picture's bytes, and the files that were left."""
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "ladder.json"
            if text is not None:
                source.write_text(text)
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                status = ladder.main([str(source), str(pathlib.Path(folder) / name)])
            target = pathlib.Path(folder) / name
            picture = target.read_bytes() if target.exists() else b""
            return status, err.getvalue(), picture, sorted(path.name for path in pathlib.Path(folder).iterdir())

    def test_bytes_are_summed_over_tensors_and_ways(self):
        self.assertEqual(750, ladder.total_bytes(VERIFIED, "requested"))
        self.assertEqual(105, ladder.total_bytes(VERIFIED, "distinct"))
        self.assertIsNone(ladder.total_bytes(SKIPPED, "requested"))

    def test_sizes_in_words(self):
        self.assertEqual("512 B", ladder.in_words(512))
        self.assertEqual("1.5 KiB", ladder.in_words(1536))
        self.assertEqual("8 GiB", ladder.in_words(8 * 2**30))
        self.assertEqual("1023 MiB", ladder.in_words(1023 * 2**20))

    def test_title_says_emulated_or_measured(self):
        self.assertIn("emulated", ladder.title_of(results(EMULATED)))
        self.assertIn("NVIDIA H200, measured", ladder.title_of(results(VERIFIED, machine="NVIDIA H200")))

    def test_pictures(self):
        for rows in ([EMULATED], [VERIFIED, EMULATED, SKIPPED, WRONG], [SKIPPED]):
            status, err, picture, files = self.draw(json.dumps(results(*rows)))
            self.assertEqual((0, ""), (status, err))
            self.assertEqual(b"\x89PNG", picture[:4])
            self.assertEqual(["ladder.json", "ladder.png"], files)

    def test_bad_input_is_one_sentence(self):
        row_without_status = {key: value for key, value in VERIFIED.items() if key != "status"}
        for text, expected in (
            (None, "cannot be read: No such file"),
            ("{", "is not JSON"),
            ("[]", "it is no object"),
            ("{}", "has no list called rows"),
            (json.dumps(results()), "has no rows"),
            (json.dumps(results(row_without_status)), "Row 0"),
            (json.dumps(results(3)), "Row 0"),
            (json.dumps(results({**VERIFIED, "tflops": "fast"})), "has 'fast' where a number belongs"),
        ):
            status, err, picture, _ = self.draw(text)
            self.assertEqual((2, b""), (status, picture))
            self.assertIn(expected, err)
            self.assertEqual(1, err.count("\n"), err)

    def test_unwritable_target(self):
        status, err, _, files = self.draw(json.dumps(results(VERIFIED)), name="missing/ladder.png")
        self.assertEqual(2, status)
        self.assertIn("cannot be written: No such file", err)
        self.assertEqual(["ladder.json"], files)


if __name__ == "__main__":
    unittest.main()
