"""check_ptxas.py against logs in ptxas' own words: one clean kernel, one that spills, one with serialised wgmma."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import check_ptxas

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma \
instructions defining accumulator registers of a wgmma between start and end of the pipeline stage in the \
function '_ZN7stage041c6kernelEPf'
ptxas info    : Compiling entry function '_ZN7stage041c6kernelEPf' for 'sm_90a'
ptxas info    : Function properties for _ZN7stage041c6kernelEPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 528 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN7stage021b6kernelEPf' for 'sm_80'
ptxas info    : Function properties for _ZN7stage021b6kernelEPf
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 49152 bytes smem, 360 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN7stage001a6kernelEPf' for 'sm_80'
ptxas info    : Function properties for _ZN7stage001a6kernelEPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
"""


class CheckPtxas(unittest.TestCase):
    def run_check(self, *patterns, log=LOG, keep_object=True):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "stage.cu.o.ptxas").write_text(log)
            if keep_object:
                (pathlib.Path(folder) / "stage.cu.o").touch()
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = check_ptxas.main([folder, *patterns])
            return status, out.getvalue(), err.getvalue()

    def test_reads_every_figure(self):
        kernels = {kernel.symbol: kernel for kernel in check_ptxas.parse(LOG)}
        spilling = kernels["_ZN7stage021b6kernelEPf"]
        self.assertEqual(("sm_80", 255, 49152), (spilling.architecture, spilling.registers, spilling.shared))
        self.assertEqual(16 + 20, spilling.spills)
        self.assertEqual([], kernels["_ZN7stage001a6kernelEPf"].remarks)
        self.assertEqual(1, len(kernels["_ZN7stage041c6kernelEPf"].remarks))

    def test_clean_fast_kernel_passes(self):
        status, out, err = self.run_check("stage00::a")
        self.assertEqual((0, ""), (status, err))
        self.assertIn("stage02::b::kernel(float*)", out)

    def test_spill_fails(self):
        status, _, err = self.run_check("stage02::b")
        self.assertEqual(1, status)
        self.assertEqual("stage02::b::kernel(float*) for sm_80 spills registers: 36 bytes stored and loaded.\n", err)

    def test_serialised_wgmma_fails(self):  # B76
        status, _, err = self.run_check("stage04")
        self.assertEqual(1, status)
        self.assertIn("C7510", err)

    def test_pattern_without_kernel_fails(self):
        status, _, err = self.run_check("stage03::b")
        self.assertEqual(1, status)
        self.assertEqual("No kernel of the build matches the pattern 'stage03::b' of fast kernels.\n", err)

    def test_no_log_is_refused(self):
        self.assertEqual(2, self.run_check("stage00", keep_object=False)[0])

    def test_bad_pattern_is_refused(self):
        status, _, err = self.run_check("(")
        self.assertEqual(2, status)
        self.assertIn("is not a regular expression", err)


if __name__ == "__main__":
    unittest.main()
