"""sass.py against a listing in cuobjdump's form: what is counted, for which kernels, and what is missed."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import sass

LISTING = """
Fatbin elf code:
================
arch = sm_90a

\tcode for sm_90a
\t\tFunction : _ZN7stage041a7forwardI6__halfLi64EEEvPf
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                      /* 0x00000a00ff017b82 */
                                                                               /* 0x000fe20000000800 */
        /*0010*/             @!UP0 UTMALDG.5D [UR8], [UR4], desc[UR6] ;        /* 0x00000a00ff017b82 */
        /*0020*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], !UPT ; /* 0x00000a00ff017b82 */
        /*0030*/              @P0  HGMMA.64x128x16.F32 R24, gdesc[UR4], gsb0 ; /* 0x00000a00ff017b82 */
        /*10040*/                  EXIT ;                                      /* 0x000000000000794d */
\t\tFunction : _ZN7stage041d7forwardI6__halfLi64EEEvPf
        /*0000*/                   HMMA.16816.F32 R4, R8, R12, R4 ;            /* 0x00000a00ff017b82 */

Fatbin elf code:
================
\tcode for sm_80
\t\tFunction : _ZN7stage031a7forwardI6__halfLi64EEEvPf
        /*0000*/                   HMMA.16816.F32 R4, R8, R12, R4 ;            /* 0x00000a00ff017b82 */
\tcode for sm_100a
\t\tFunction : _ZN7stage051a7forwardI6__halfLi64EEEvPf
        /*0000*/             @UP1  UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ; /* 0x00000a00ff017b82 */
        /*0010*/                   LDTM.x32 R4, tmem[UR4] ;                    /* 0x00000a00ff017b82 */
        /*0020*/                   LDTM.x32 R36, tmem[UR5] ;                   /* 0x00000a00ff017b82 */
"""
A, D, FIVE = (f"_ZN7stage0{letter}7forwardI6__halfLi64EEEvPf" for letter in ("41a", "41d", "51a"))


class Sass(unittest.TestCase):
    def test_opcodes_of_each_kernel(self):
        kernels = sass.parse(LISTING)
        self.assertEqual({("sm_90a", A), ("sm_90a", D), ("sm_80", A.replace("41a", "31a")), ("sm_100a", FIVE)}, set(kernels))
        self.assertEqual({"LDC": 1, "UTMALDG": 1, "HGMMA": 2, "EXIT": 1}, kernels["sm_90a", A])
        self.assertEqual({"UTCHMMA": 1, "LDTM": 2}, kernels["sm_100a", FIVE])

    def test_rows_are_of_fast_kernels_in_their_order(self):
        found = sass.rows(sass.parse(LISTING), [r"\bstage05::a::", r"\bstage04::a::.*64"])
        self.assertEqual(["stage05::a::forward<__half, 64>", "stage04::a::forward<__half, 64>"], [row["kernel"] for row in found])
        five, four = found
        self.assertEqual(("sm_100a", 3, 1, 2, 0),
                         (five["architecture"], five["instructions"], *(five["counts"][name] for name in ("UTCHMMA", "LDTM", "STTM"))))
        self.assertEqual(("sm_90a", 5, 2, 1, 0),
                         (four["architecture"], four["instructions"], *(four["counts"][name] for name in ("HGMMA", "UTMALDG", "UTMASTG"))))
        lines = [line.split() for line in sass.table(found).splitlines()]
        self.assertEqual(["sm_90a", "5", "-"], lines[2][:3])
        self.assertEqual("2", lines[2][lines[0].index("HGMMA")])

    def test_what_is_missing_is_named(self):
        patterns = [r"\bstage04::a::", r"\bstage04::d::", r"\bstage04::z::"]
        found = sass.rows(sass.parse(LISTING), patterns)
        self.assertEqual([r"No kernel of '\bstage04::d::' for sm_90a has an HGMMA.",
                          r"No kernel of the libraries matches the pattern '\bstage04::z::' of fast kernels."],
                         list(sass.faults(found, patterns)))  # fmt: skip

    def run_main(self, folder, cuobjdump):
        err = io.StringIO()
        with unittest.mock.patch("shutil.which", return_value=cuobjdump), contextlib.redirect_stderr(err):
            return sass.main([str(folder)]), err.getvalue()

    def test_the_compiler_is_the_one_that_cmake_found(self):
        with tempfile.TemporaryDirectory() as folder:
            facts = pathlib.Path(folder) / "CMakeFiles/3.25.1/CMakeCUDACompiler.cmake"
            facts.parent.mkdir(parents=True)
            facts.write_text('set(CMAKE_CUDA_COMPILER "/cuda/bin/nvcc")\nset(CMAKE_CUDA_COMPILER_VERSION "13.0.88")\n')
            self.assertEqual("nvcc 13.0.88", sass.compiler(pathlib.Path(folder)))

    def test_without_cuobjdump_it_is_skipped(self):
        self.assertEqual((77, "sass.py: there is no cuobjdump in PATH. It comes with the CUDA toolkit.\n"), self.run_main("build", None))

    def test_a_folder_that_is_no_cuda_build_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "libstage_04.a").touch()
            status, err = self.run_main(folder, "/usr/bin/cuobjdump")
        self.assertEqual(2, status)
        self.assertIn("is no CUDA build with stage 04 or 05", err)


if __name__ == "__main__":
    unittest.main()
