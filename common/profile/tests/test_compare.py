"""compare.py with programs that keep a diary: they take turns, and ratios are those of the rounds. peers.py without PyTorch."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(HERE))
import compare
import peers
import results

PROBLEM = "B=1 Hq=2 Hkv=2 Nq=64 Nk=64 d=64 bf16 causal"
DIARY = """\
import sys
for turn in range(3):
    print("ready", flush=True)
    sys.stdin.readline()
    with open(sys.argv[1], "a") as diary:
        diary.write(sys.argv[2])
sys.exit(int(sys.argv[3]))
"""


def row(stage, name, ms, **more):
    return {"stage": stage, "rung": "", "name": name, "pass": "forward", "status": "verified", "problem": {"text": PROBLEM},
            "l2": "warm", "ms": ms, "time_ms": sorted(ms)[len(ms) // 2], "tflops": 1.0} | more  # fmt: skip


class Compare(unittest.TestCase):
    def test_programs_take_turns(self):
        with tempfile.TemporaryDirectory() as folder:
            diary = pathlib.Path(folder) / "diary"
            command = lambda name, status: [sys.executable, "-c", DIARY, str(diary), name, status]
            self.assertEqual([0, 3], compare.run_in_step([command("a", "0"), command("b", "3")]))
            self.assertEqual("abbaab", diary.read_text())

    def test_a_program_that_cannot_begin_ends_it(self):
        with self.assertRaises(compare.Failed):
            compare.run_in_step([[sys.executable, "-c", "import sys; sys.exit(3)"]])

    def test_peers_are_measured_where_a_rung_is(self):
        listing = f"00a three_kernels/forward/{PROBLEM}\n02b split_kv/forward/{PROBLEM}\n02b split_kv/backward/{PROBLEM}\n"
        self.assertEqual([f"forward/{PROBLEM}", f"backward/{PROBLEM}"], compare.chosen(listing))

    def test_without_a_rung_nothing_is_measured(self):
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(3, compare.main(["true"]))
        self.assertIn("no rung", err.getvalue())

    def test_ratio_is_formed_within_each_round(self):
        # The clock halves after five rounds: times double, ratios stay 2.
        clock = [1] * 5 + [2] * 4
        ours, theirs = [1.0 * c for c in clock], [2.0 * c for c in clock]
        self.assertEqual((2, 2, 2), compare.ratio(row("02", "x", ours), row("peer", "y", theirs)))

    def test_table_has_every_rung_beside_every_peer(self):
        rows = [row("02b", "ours", [2.0] * 9, roof={"ms": 1.0, "ceiling": "c"}, roof_fraction=0.5)]
        rows += compare.with_roofs([row("peer", "flash", [1.0] * 9), row("peer", "cudnn", [4.0] * 9)], rows)
        lines = compare.table(rows).splitlines()
        self.assertIn(PROBLEM, lines[0])
        self.assertIn("| peer flash | 1 | 1 | 100 % | 1 (1-1) | 4 (4-4) |", lines)
        self.assertIn("| 02b ours | 2 | 1 | 50 % | 0.5 (0.5-0.5) | 2 (2-2) |", lines)


    def test_table_without_a_peer_has_as_many_heads_as_cells(self):
        lines = compare.table([row("02b", "ours", [2.0] * 9)]).splitlines()
        self.assertEqual({5}, {line.count("|") for line in lines[2:]})


class Peers(unittest.TestCase):
    def test_packed_sequences_are_left_out_by_name(self):
        problem = results.parse_problem("B=2 Hq=1 Hkv=1 Nq=7 Nk=7 d=64 bf16 none seqlens=5,7")
        for name in peers.PEERS:  # without a GPU: nothing of PyTorch may be asked for
            found = peers.Peer(None, name, "forward", problem, "warm", peers.inputs(None, problem)).row
            self.assertEqual(("skipped", "takes no packed sequences here"), (found["status"], found["reason"]))

    def run_peers(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "torch.py").write_text("raise ImportError")  # as where PyTorch is not installed
            environment = os.environ | {"PYTHONPATH": folder}
            return subprocess.run([sys.executable, HERE / "peers.py", *arguments], env=environment, capture_output=True, text=True)

    def test_without_pytorch_is_said(self):
        done = self.run_peers("forward/" + PROBLEM)
        self.assertEqual(3, done.returncode)
        self.assertIn("PyTorch", done.stderr)

    def test_bad_arguments_are_refused(self):
        right = "forward/" + PROBLEM
        for arguments in ([], ["forward/B=1"], [PROBLEM], ["up/" + PROBLEM], ["--peers", "nobody", right], ["--repetitions", "3", right]):
            self.assertEqual(2, self.run_peers(*arguments).returncode, arguments)


if __name__ == "__main__":
    unittest.main()
