"""gate.py: noise raises no alarm, a slower kernel does, and a count that differs by one does."""

import contextlib
import copy
import io
import json
import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import gate


def timed(seed, slowed=1.0, rungs=30):
    """A run as a GPU gives it: samples with 1 % of noise and now and then a hiccup, all drifting by the machine's clock, of
    which the ceilings of the run, and so the roof, see as much."""
    noise = random.Random(seed)
    clock = noise.uniform(0.95, 1.0)
    rows = []
    for rung in range(rungs):
        length = 0.1 * 1.3**rung
        ms = [length / clock * noise.gauss(1, 0.01) * (1.2 if noise.random() < 0.03 else 1) for _ in range(9)]
        ms = [time * (slowed if rung == 7 else 1) for time in ms]
        rows.append({"stage": "02", "rung": "b", "name": f"r{rung}", "pass": "forward", "status": "verified", "l2": "warm",
                     "problem": {"text": "p"}, "ms": ms, "roof": {"ms": 0.3 * length / clock, "ceiling": "wgmma bf16"}})  # fmt: skip
    return {"emulated": False, "debug": False, "rows": rows}


def counted():
    tensors = {"K": {"requested_read": 1000, "requested_written": 0, "distinct_read": 100, "distinct_written": 0}}
    row = {"stage": "02", "rung": "b", "name": "split_kv", "pass": "forward", "status": "verified", "problem": {"text": "p"},
           "flops": 4096.0, "bytes": {"source": "counted", "tensors": tensors},
           "counts": {"mma_flops": 4096, "exponentials": 64, "rescales": 8, "barriers": 3}}  # fmt: skip
    other = copy.deepcopy(row) | {"pass": "backward"}
    return {"emulated": True, "debug": False, "rows": [row, other]}


class Gate(unittest.TestCase):
    def run_gate(self, before, after):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, results in (("before.json", before), ("after.json", after)):
                paths.append(str(pathlib.Path(folder) / name))
                pathlib.Path(paths[-1]).write_text(json.dumps(results))
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                if before.get("emulated"):
                    baseline = str(pathlib.Path(folder) / "baseline.json")
                    self.assertEqual(0, gate.main(["--write", baseline, paths[0]]))
                    paths[0] = baseline
                status = gate.main(paths)
            return status, out.getvalue() + err.getvalue()

    def test_two_runs_of_the_same_raise_no_alarm(self):
        for attempt in range(20):
            self.assertEqual(0, self.run_gate(timed(2 * attempt), timed(2 * attempt + 1))[0], attempt)

    def test_ten_percent_do(self):
        for attempt in range(20):
            status, said = self.run_gate(timed(2 * attempt), timed(2 * attempt + 1, slowed=1.1))
            self.assertEqual(1, status, attempt)
            self.assertIn("02b r7", said)
            self.assertIn("1 alarms", said)

    def test_a_faster_kernel_does_not(self):
        self.assertEqual(0, self.run_gate(timed(1), timed(2, slowed=0.8))[0])

    def test_a_rung_that_became_wrong_does(self):
        after = timed(2)
        after["rows"][3] |= {"status": "wrong", "reason": "it is off", "ms": []}
        status, said = self.run_gate(timed(1), after)
        self.assertEqual(1, status)
        self.assertIn("it is off", said)

    def test_a_rung_that_is_gone_does(self):
        after = timed(1)
        gone = after["rows"].pop(5)
        status, said = self.run_gate(timed(1), after)
        self.assertEqual(1, status)
        self.assertIn(f"02b {gone['name']}, forward, p, warm: not in the results.", said)
        self.assertIn("29 measurements compared", said)
        self.assertEqual(0, self.run_gate(after, timed(1))[0])  # a new one is no loss

    def test_peers_are_not_judged(self):
        before, after = timed(1), timed(1, slowed=1.5)
        for results in (before, after):
            results["rows"][7]["stage"] = "peer"
        self.assertEqual(0, self.run_gate(before, after)[0])
        after["rows"].pop(7)
        self.assertEqual(0, self.run_gate(before, after)[0])

    def test_rows_without_a_roof_are_said(self):
        for which, word in ((0, "in the baseline."), (1, "in the results.")):
            runs = timed(1), timed(1, slowed=1.5)
            del runs[which]["rows"][7]["roof"]
            status, said = self.run_gate(*runs)
            self.assertEqual(0, status)
            self.assertIn("02b r7, forward, p, warm: not compared, it has no roof " + word, said)
            self.assertIn("29 measurements compared", said)
            self.assertIn("1 not, 0 alarms", said)
        none = timed(1, rungs=1)
        none["rows"][0]["roof"] = None
        status, said = self.run_gate(none, none)
        self.assertEqual(2, status)
        self.assertIn("in common that has a roof", said)

    def test_equal_counts_pass(self):
        self.assertEqual(0, self.run_gate(counted(), counted())[0])

    def test_each_count_matters(self):
        for what in ("mma_flops", "exponentials", "rescales", "barriers"):
            after = counted()
            after["rows"][0]["counts"][what] += 1
            status, said = self.run_gate(counted(), after)
            self.assertEqual(1, status, what)
            self.assertIn(what, said)
        for kind in ("requested_read", "requested_written", "distinct_read", "distinct_written"):
            after = counted()
            after["rows"][1]["bytes"]["tensors"]["K"][kind] += 1
            self.assertEqual(1, self.run_gate(counted(), after)[0], kind)
        after = counted()
        after["rows"][0]["flops"] += 1
        self.assertEqual(1, self.run_gate(counted(), after)[0])

    def test_counts_that_come_or_go_do(self):
        shorter = counted()
        shorter["rows"].pop()
        self.assertEqual(1, self.run_gate(counted(), shorter)[0])
        self.assertEqual(1, self.run_gate(shorter, counted())[0])
        tensor = counted()
        tensor["rows"][0]["bytes"]["tensors"]["S"] = {"requested_read": 1}
        self.assertEqual(1, self.run_gate(counted(), tensor)[0])
        wrong = counted()
        wrong["rows"][0]["status"] = "wrong"
        self.assertEqual(1, self.run_gate(counted(), wrong)[0])

    def test_what_cannot_be_compared_is_refused(self):
        self.assertEqual(2, self.run_gate(counted(), timed(1))[0])
        self.assertEqual(2, self.run_gate(timed(1), counted())[0])
        self.assertEqual(2, self.run_gate(timed(1), timed(1) | {"debug": True})[0])
        self.assertEqual(2, self.run_gate(timed(1) | {"rows": []}, timed(1))[0])

    def expect_refused(self, arguments, word):
        """gate.py says why it stops, in one line that has the word."""
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(2, gate.main(arguments), arguments)
        self.assertRegex(err.getvalue(), f"^gate.py: .*{word}.*\\.\n$")

    def test_malformed_results_are_refused(self):
        def row(results, **changed):
            return results | {"rows": [results["rows"][0] | changed, *results["rows"][1:]]}

        ours = timed(1)
        counts, flows = counted()["rows"][0]["counts"], counted()["rows"][0]["bytes"]["tensors"]
        bad = [(ours | {"rows": [5]}, "row 0 lacks"), (row(ours, problem="p"), "row 0 lacks"), (row(ours, name=None), "row 0 lacks"),
               (row(ours, problem={}), "row 0 lacks"), (row(ours, l2=3), "row 0 lacks"), ([], "no object"), ({}, "no list called rows"),
               *((row(ours, ms=ms), "r0.* its ms") for ms in ([], None, 3, [0.0], [1, -1], ["1"], [True], [float("nan")], [1e400])),
               *((row(ours, roof=roof), "r0.* its roof") for roof in ({}, 3, {"ms": 0}, {"ms": "1"}, {"ms": float("nan")})),
               ({"counts": 5}, "no baseline"), ({"counts": {"a": 5}}, "no baseline"), ({"counts": {"a": {"b": "c"}}}, "no baseline"),
               *((row(counted(), counts=value), "its counts") for value in (None, 5, counts | {"barriers": "3"})),
               *((row(counted(), flops=value), "its counts") for value in (None, "many", float("nan"), 1e400)),
               *((row(counted(), bytes=value), "its counts") for value in
                 (None, {}, {"tensors": None}, {"tensors": {"K": 5}}, {"tensors": flows | {"V": {"requested_read": None}}}))]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            baseline, broken, good = (str(pathlib.Path(folder) / name) for name in ("baseline.json", "broken.json", "good.json"))
            pathlib.Path(baseline).write_text('{"counts": {}}')
            for results, word in bad:
                pathlib.Path(broken).write_text(json.dumps(results))
                of_emulator = isinstance(results, dict) and ("counts" in results or results.get("emulated"))
                pathlib.Path(good).write_text(json.dumps(counted() if of_emulator else ours))
                with self.subTest(results=results):
                    as_results = isinstance(results, dict) and results.get("emulated")
                    self.expect_refused([baseline, broken] if as_results else [broken, good], word)

    def test_a_baseline_is_made_of_right_runs_alone(self):
        wrong, skipped = counted(), counted()
        wrong["rows"][0] |= {"status": "wrong", "reason": "it is off"}
        for row in skipped["rows"]:
            row["status"] = "skipped"
        with tempfile.TemporaryDirectory() as folder:
            baseline, results = pathlib.Path(folder) / "baseline.json", pathlib.Path(folder) / "results.json"
            baseline.write_text("kept")
            for bad, word in ((wrong, "it is off"), (skipped, "No rung was verified"), (counted() | {"rows": []}, "No rung"),
                              (timed(1), "Times need no --write")):  # fmt: skip
                results.write_text(json.dumps(bad))
                self.expect_refused(["--write", str(baseline), str(results)], word)
                self.assertEqual("kept", baseline.read_text())
            results.write_text(json.dumps(counted()))
            self.expect_refused(["--write", str(pathlib.Path(folder) / "missing" / "x"), str(results)], "cannot be written")
            self.expect_refused(["--write", folder, str(results)], "cannot be written")
            self.assertEqual(0, gate.main(["--write", str(baseline), str(results)]))
            self.assertEqual(2, len(json.loads(baseline.read_text())["counts"]))
            self.assertEqual({"baseline.json", "results.json"}, {path.name for path in pathlib.Path(folder).iterdir()})


if __name__ == "__main__":
    unittest.main()
