"""cases.py finds the tests of each fault, keeps what a fault waits for, and refuses a catalogue that cannot be right."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import cases  # noqa: E402

ONE, TWO = "B" + "01", "B" + "02"  # in pieces, since cases.py reads this file too


class Cases(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.write("common/reference/tests/forward_test.cc", f"TEST(F, {ONE}_NoKeys) {{}}\n// A32{TWO} is no id\n")
        self.write("common/verify/stage_tests/cases.cc", f"// {ONE}: rows without keys\n")
        self.write("03_fa2/decode_test.cc", f"// {ONE}: a cache without keys\n")
        self.write("common/reference/reference.cc", f"// {TWO}: no test\n")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def test_tests_are_found_by_name_and_comment(self):
        self.assertEqual(cases.tested_in(self.root),
                         {ONE: "[stage 03](../03_fa2/decode_test.cc), "
                               "[reference](../common/reference/tests/forward_test.cc), "
                               "[every rung](../common/verify/stage_tests/cases.cc)"})

    def test_last_column_is_written_again(self):
        for stale in (" ", " [old](gone.cc) ", " waits for fp8 "):
            text = cases.filled(f"| {ONE} | fault |{stale}|\n", {ONE: "[a](b)"})
            self.assertEqual(text, f"| {ONE} | fault | [a](b) |\n")
        waiting = f"| {TWO} | fault | waits for fp8 |\n"
        self.assertEqual(cases.filled(waiting, {}), waiting)

    def test_untested_or_unknown_is_refused(self):
        with self.assertRaisesRegex(ValueError, f"no test names {ONE}"):
            cases.filled(f"| {ONE} | fault | |\n", {})
        with self.assertRaisesRegex(ValueError, f"tests name {TWO}"):
            cases.filled(f"| {ONE} | fault | |\n", {ONE: "[a](b)", TWO: "[a](b)"})


if __name__ == "__main__":
    unittest.main()
