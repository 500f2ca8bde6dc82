"""deletions.py finds every call that orders something, changes that one only, and does not hide what nobody notices."""
import concurrent.futures
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
if (more) barrier_sync(1 + warp(0),
                       64);
cp_async_wait_group<slots - 2>();
barrier_sync(1 + warp(0), 64);
}  // namespace stage02::b
"""

ARRIVALS = """namespace stage02::b {
mbarrier_arrive(full(0, 1));
mbarrier_arrive_expect_tx(full(0, 1), sizeof(K) + 8);
wgmma_wait_group<1>(S, W);
while (ld_acquire_gpu(turn, 0, 1) != before) {}
const auto arrive = [&] { };
}  // namespace stage02::b
"""


class Deletions(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.file = pathlib.Path(temporary.name) / "02_fa1/b_x.cuh"
        self.file.parent.mkdir()
        self.file.write_text(SOURCE)
        deletions.ROOT, root = self.file.parents[1], deletions.ROOT
        self.addCleanup(setattr, deletions, "ROOT", root)

    def test_each_call_is_changed_alone(self):
        found = deletions.mutants(self.file)
        self.assertEqual([(m.which, m.change) for m in found],
                         [("1st `cp_async_commit_group()`", "deleted"),
                          ("1st `cp_async_wait_group<0>()`", "deleted"),
                          ("1st `cp_async_wait_group<0>()`", "weakened to `<1>`"),
                          ("1st `barrier_sync(1 + warp(0), 64)`", "deleted"),
                          ("1st `cp_async_wait_group<slots - 2>()`", "deleted"),
                          ("1st `cp_async_wait_group<slots - 2>()`", "weakened to `<slots - 2 + 1>`"),
                          ("2nd `barrier_sync(1 + warp(0), 64)`", "deleted")])

    def test_one_copy_holds_all_changes(self):
        source = deletions.switched(SOURCE, deletions.mutants(self.file))
        self.assertTrue(source.startswith(deletions.CHOICE))
        self.assertEqual(source.removeprefix(deletions.CHOICE), """namespace stage02::b {
// bar_sync(); in a comment is no call
copy(tile);
(chosen_change == 0 ? void() : cp_async_commit_group());
(chosen_change == 1 ? void() : chosen_change == 2 ? cp_async_wait_group<1>() : cp_async_wait_group<0>());
if (more) (chosen_change == 3 ? void() : barrier_sync(1 + warp(0),
                       64));
(chosen_change == 4 ? void() : chosen_change == 5 ? cp_async_wait_group<slots - 2 + 1>() : \
cp_async_wait_group<slots - 2>());
(chosen_change == 6 ? void() : barrier_sync(1 + warp(0), 64));
}  // namespace stage02::b
""")

    def test_an_arrival_loses_its_bytes_and_a_wait_for_products_is_weakened(self):
        self.file.write_text(ARRIVALS)
        found = deletions.mutants(self.file)
        self.assertEqual([(m.which, m.change, m.replacement) for m in found],
                         [("1st `mbarrier_arrive(full(0, 1))`", "deleted", "void()"),
                          ("1st `mbarrier_arrive_expect_tx(full(0, 1), sizeof(K) + 8)`", "deleted", "void()"),
                          ("1st `mbarrier_arrive_expect_tx(full(0, 1), sizeof(K) + 8)`",
                           "weakened to an arrival without bytes", "mbarrier_arrive(full(0, 1))"),
                          ("1st `wgmma_wait_group<1>(S, W)`", "deleted", "void()"),
                          ("1st `wgmma_wait_group<1>(S, W)`", "weakened to `<2>`", "wgmma_wait_group<2>(S, W)"),
                          ("1st `ld_acquire_gpu(turn, 0, 1) != before`", "deleted", "false")])

    def test_a_file_is_compiled_through_what_includes_it(self):
        folder = self.file.parent
        (folder / "b_x.cu").write_text('#include "02_fa1/middle.cuh"\n')
        (folder / "middle.cuh").write_text('#include "02_fa1/b_x.cuh"\n')
        (folder / "other.cu").write_text("// nothing of it\n")
        (folder / "cuda_only.cu").write_text('#include "02_fa1/b_x.cuh"\n')
        build = deletions.Build.__new__(deletions.Build)
        build.commands = {str(folder / name): [] for name in ("b_x.cu", "other.cu")}
        self.assertEqual(build.sources(self.file), [folder / "b_x.cu"])
        build.commands = {str(folder / "other.cu"): []}
        self.assertEqual(build.sources(self.file), [])

    def finished(self, status, stdout="", stderr=""):
        return subprocess.CompletedProcess([], status, stdout, stderr)

    def test_verdicts(self):
        self.assertIsNone(deletions.verdict(self.finished(0)))
        found = {"kind": "protocol report", "schedule": "random", "seed": 2,
                 "report": "ldmatrix of 16 bytes at shared memory offset 34784: the bytes are the destination of a "
                           "cp.async in flight, issued by thread 121 (warp 3, lane 25) at /home/x.cuh:63; its "
                           "wait_group has not covered the copy yet\nmore"}
        self.assertEqual(deletions.verdict(self.finished(1, json.dumps(found))),
                         ("protocol report", "random, seed 2",
                          "ldmatrix of 16 bytes: the bytes are the destination of a cp.async in flight"))
        found["report"] = "write of 4 bytes at shared memory offset 8: wgmma issued by thread 1 at /home/y.cuh:7 may read"
        self.assertEqual(deletions.verdict(self.finished(1, json.dumps(found)))[2],
                         "write of 4 bytes: wgmma issued by thread 1 may read")
        race = "schedule reverse, seed 1\nWARNING: ThreadSanitizer: data race (pid=1)\n"
        self.assertEqual(deletions.verdict(self.finished(66, "", race)),
                         ("race report (ThreadSanitizer)", "reverse, seed 1", "data race (pid=1)"))
        self.assertEqual(deletions.verdict(self.finished(-11))[0], "crash")

    def test_an_intact_kernel_that_does_not_end_is_a_sentence(self):
        class Endless:
            def run(self, driver, *arguments, change, timeout):
                raise subprocess.TimeoutExpired(driver, timeout)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            self.assertEqual(deletions.intact_reports(pool, Endless(), {self.file: "driver"}, 200),
                             ["02_fa1/b_x.cuh as it is: ('hang', '', 'no end after 2300 s')"])

    def test_nobody_stands_in_the_table(self):
        self.assertIn("**nobody**", deletions.row(deletions.mutants(self.file)[0], None))


if __name__ == "__main__":
    unittest.main()
