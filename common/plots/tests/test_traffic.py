"""plots/traffic.py: the formula, a picture, and bad input answered in one sentence."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import traffic


class Traffic(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_on(self, text):
        source = self.folder / "in.json"
        source.write_text(text, encoding="utf-8")
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = traffic.main([str(source), str(self.folder / "out.png")])
        return status, errors.getvalue()

    def test_formula(self):
        # N = 8, d = 2, Bc = 4, so M = 32: K and V 32 elements, two passes of 3 * 16 + 32.
        self.assertEqual(traffic.theory(8, 2, 32), 32 + 2 * 80)

    def test_draws(self):
        points = [{"Bc": 4, "M": 32, "elements": 200}, {"Bc": 8, "M": 64, "elements": 120}]
        status, errors = self.run_on(json.dumps({"N": 8, "d": 2, "problem": "N=8", "points": points}))
        self.assertEqual((status, errors), (0, ""))
        self.assertTrue((self.folder / "out.png").read_bytes().startswith(b"\x89PNG"))

    def test_a_picture_is_whole_or_the_old_one_stays(self):
        def fails_half_way(figure, path, **options):
            pathlib.Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")

        (self.folder / "out.png").write_bytes(b"old")
        with unittest.mock.patch("matplotlib.figure.Figure.savefig", fails_half_way):
            status, errors = self.run_on(json.dumps({"N": 8, "d": 2, "points": [{"Bc": 4, "M": 32, "elements": 200}]}))
        self.assertEqual((2, f"{self.folder / 'out.png'} cannot be written: No space left on device.\n"), (status, errors))
        self.assertEqual(b"old", (self.folder / "out.png").read_bytes())
        self.assertEqual(["in.json", "out.png"], sorted(path.name for path in self.folder.iterdir()))

    def test_bad_input(self):
        for text in ("{", "[]", "{}", '{"N": 8, "d": 2, "points": []}', '{"N": 8, "d": 2, "points": [{"M": 4}]}',
                     '{"N": 8, "d": 2, "points": [{"M": 4, "elements": "many"}]}'):  # fmt: skip
            status, errors = self.run_on(text)
            self.assertEqual((status, len(errors.splitlines())), (2, 1), text)


if __name__ == "__main__":
    unittest.main()
