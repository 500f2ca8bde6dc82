"""deletions.py finds every call that orders something, changes that one only, and does not hide what nobody notices."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "deletions"))
import deletions  # noqa: E402

SOURCE = """namespace stage02::b {
// bar_sync(); in a comment is no call
copy(tile);
cp_async_commit_group();
cp_async_wait_group<0>();
if (more) bar_sync(1 + warp(0),
                   64);
}  // namespace stage02::b
"""


class Deletions(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.file = pathlib.Path(temporary.name) / "02_fa1/b_x.cuh"
        self.file.parent.mkdir()
        self.file.write_text(SOURCE)

    def test_each_call_is_changed_alone(self):
        found = deletions.mutants(self.file)
        self.assertEqual([(m.line, m.what) for m in found],
                         [(4, "`cp_async_commit_group()` deleted"), (5, "`cp_async_wait_group<0>()` deleted"),
                          (5, "`cp_async_wait_group<0>()` weakened to `<1>`"),
                          (6, "`bar_sync(1 + warp(0), 64)` deleted")])
        self.assertEqual(found[0].source, SOURCE.replace("cp_async_commit_group()", ""))
        self.assertEqual(found[2].source, SOURCE.replace("group<0>", "group<1>"))
        self.assertEqual(found[3].source, SOURCE.replace("bar_sync(1 + warp(0),\n                   64)", ""))
        self.assertEqual(len({m.id for m in found}), 4)

    def finished(self, status, stdout="", stderr=""):
        return subprocess.CompletedProcess([], status, stdout, stderr)

    def test_verdicts(self):
        self.assertIsNone(deletions.verdict(self.finished(0, '{"noticed": 0}')))
        found = {"kind": "race report", "schedule": "random", "seed": 2, "noticed": 3, "schedules": 12, "report": "a\nb"}
        self.assertEqual(deletions.verdict(self.finished(1, json.dumps(found))),
                         ("race report", "random, seed 2 (noticed by 3 of 12)", "a"))
        race = "schedule reverse, seed 1\nWARNING: ThreadSanitizer: data race (pid=1)\n"
        self.assertEqual(deletions.verdict(self.finished(66, "", race)),
                         ("race report (ThreadSanitizer)", "reverse, seed 1", "data race (pid=1)"))
        self.assertEqual(deletions.verdict(self.finished(-11))[0], "crash")

    def test_nobody_stands_in_the_table(self):
        deletions.ROOT, root = self.file.parents[1], deletions.ROOT
        self.addCleanup(setattr, deletions, "ROOT", root)
        self.assertIn("**nobody**", deletions.row(deletions.mutants(self.file)[0], None))


if __name__ == "__main__":
    unittest.main()
