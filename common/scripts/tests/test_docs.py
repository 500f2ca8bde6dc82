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
            "l2": "warm", "tflops": tflops, "time_ms": 80 / tflops, "ms": [80 / tflops] * 9, "bytes_per_s": tflops * 1e10,
            "roof_fraction": tflops / 800} | more  # fmt: skip


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

    def test_of_many_problems_the_command_names_the_first(self):
        command = 'compare.sh --pass forward --problem "B=1 N=2" --problem "B=3 N=4" --problem "B=5 N=6"'
        self.assertIn('`compare.sh --pass forward --problem "B=1 N=2" --problem ...`', docs.table(RESULTS | {"command": command}, {}))
        self.assertIn('`bench --problem "B=1"`', docs.table(RESULTS | {"command": 'bench --problem "B=1"'}, {}))

    def test_instructions_of_main_kernels(self):
        rows = [{"kernel": f"stage{name}", "architecture": "sm_90a", "instructions": 100 + n, "counts": {"HGMMA": n, "LDTM": 0}}
                for n, name in enumerate(["04::a::forward<__nv_bfloat16, 128>", "04::a::forward<__nv_bfloat16, 64>",
                                          "04::a_backward::backward<__nv_bfloat16, 128>", "04::a::forward<__half, 128>",
                                          "04::a_backward::finish<__nv_bfloat16, 128>", "05::a::forward<__nv_bfloat16, 128>"])]  # fmt: skip
        table = docs.table({"compiler": "nvcc 1", "command": "sass.py", "commit": "abc", "rows": rows}, {"stages": "04"})
        self.assertEqual(["| rung | instructions | HGMMA |", "|---|---|---|", "| 04a | 100 | 0 |", "| 04a backward | 102 | 2 |", "",
                          "bf16, d = 128 where there is a choice; nvcc 1 for sm_90a; `sass.py`, commit abc."], table.splitlines())  # fmt: skip

    def test_decoding_is_in_bytes(self):
        rows = [row("d", "B=1", 50.0, **{"pass": "decode"}), row("d", "B=8", 100.0, **{"pass": "decode"})]
        self.assertIn("| 02b d | decode | 0.5 (6.2 %) | 1 (12 %) |", docs.table(RESULTS | {"rows": rows}, {"pass": "decode"}).splitlines())

    def test_a_measurement_that_was_left_out_is_a_dash(self):
        self.assertIn("| 02b y | backward | 44 (5.5 %) | - |", docs.table(RESULTS | {"rows": [
            row("y", "B=1", 44.0, **{"pass": "backward"}), row("x", "B=2", 44.0)]}, {}).splitlines())  # fmt: skip

    def test_peers(self):
        rows = [row("x", "B=4 d=128", 80.0), row("x", "B=1 d=128", 40.0),
                row("flash", "B=4 d=128", 160.0, stage="peer", rung=""), row("cudnn", "B=4 d=128", 400.0, stage="peer", rung=""),
                row("flash", "B=1 d=128", 20.0, stage="peer", rung="")]  # fmt: skip
        results = RESULTS | {"rows": rows, "repetitions": 9, "peers": {"build": "PyTorch"}}
        lines = docs.table(results, {"show": "peers", "stages": "02"}).splitlines()
        self.assertEqual("| problem | rung | pass | TFLOP/s | / flash | / cudnn |", lines[0])
        self.assertEqual(["| B=4 | 02b x | forward | 80 (10 %) | 0.50 (0.50-0.50) | 0.20 (0.20-0.20) |",
                          "| B=1 | 02b x | forward | 40 (5 %) | 2.00 (2.00-2.00) | - |"], lines[2:4])  # fmt: skip
        self.assertNotIn("peer flash", docs.table(results, {}))  # the plain table is of rungs alone

    def test_polynomials_have_a_column_where_there_are_some(self):
        results = {"machine": "emulated", "command": "ladder", "commit": "abc", "problem": {"text": "B=1"},
                   "rows": [{"stage": "02", "rung": rung, "name": "x", "pass": "forward", "status": "verified", "exps": 3e3,
                             "polynomials": polynomials} for rung, polynomials in (("a", 0), ("b", 1000))]}  # fmt: skip
        self.assertEqual(["| 02a x | forward | - | - | 3 k | 0 |", "| 02b x | forward | - | - | 3 k | 1 k |"],
                         docs.table(results, {}).splitlines()[2:4])  # fmt: skip
        results["rows"].pop()
        self.assertNotIn("polynomials", docs.table(results, {}))

    def test_a_table_without_rows_says_so(self):
        results = RESULTS | {"rows": RESULTS["rows"] + [row("flash", "B=4 N=4096 d=128 none", 160.0, stage="peer", rung="")]}
        self.assertEqual("Not measured yet.\n", docs.table(results, {"stages": "03", "show": "peers"}))

    def test_libraries_beside_the_ceilings(self):
        reached = {"copy": {"what": "copy of 1 GiB", "per_second": 3.87e12, "unit": "B/s"}}
        results = RESULTS | {"peers": {"build": "PyTorch", "libraries": reached}}
        self.assertIn("| copy | copy of 1 GiB | 3.87 TB | 90 % |", docs.table(results, {"show": "libraries"}).splitlines())

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

    def test_numerics(self):
        row = {"law": "normal", "tau": 0.0, "rows": 0.0588, "warps": 0.67, "bf16": 2e-3, "fp16": 3e-4, "largest_weight": 1.0}
        results = {"machine": "any", "command": "numerics", "commit": "abc", "problem": "64 rows",
                   "exp2": [{"name": "degree 3", "relative": 8.565e-5, "bf16": 3.9e-3}], "rescaling": [row, row | {"tau": 8.0}]}  # fmt: skip
        self.assertIn("| degree 3 | 8.56e-05 | 3.90e-03 |", docs.table(results, {}).splitlines())
        lines = docs.table(results, {"tau": "8,15"}).splitlines()
        self.assertEqual(["| normal | 8 | 5.88 % | 67 % | 2.0e-03 | 3.0e-04 | 1 |", "",
                          "64 rows; machine: any; `numerics`, commit abc."], lines[2:])  # fmt: skip

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
