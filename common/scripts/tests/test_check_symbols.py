"""check_symbols.py sees what it is for: two rungs that define one kernel, and names outside a rung's own namespace."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import check_symbols  # noqa: E402

KERNEL = """#define __global__
namespace {space} {{
template <class T> __global__ __attribute__((noinline)) void {name}(T* x) {{ *x = {value}; }}
template void {name}<int>(int*);
}}  // namespace {space}
"""


class CheckSymbols(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def library(self, file, **text):
        source = self.folder / file
        source.parent.mkdir(exist_ok=True)
        source.write_text(KERNEL.format(**text))
        object_file, archive = source.with_suffix(".o"), source.with_suffix(".a")
        subprocess.run(["c++", "-g", "-O1", "-x", "c++", "-c", str(source), "-o", str(object_file)], check=True)
        subprocess.run(["ar", "rc", str(archive), str(object_file)], check=True)
        return archive

    def test_a_kernel_in_two_rungs_is_a_fault(self):
        libraries = [self.library("02_one/a_x.cuh", space="stage02::a", name="forward", value=1),
                     self.library("03_two/b_x.cuh", space="stage02::a", name="forward", value=2)]
        faults = check_symbols.symbol_faults(libraries)
        self.assertEqual(len(faults), 1)
        for word in ("stage02::a::forward", "a_x.cuh", "b_x.cuh"):
            self.assertIn(word, faults[0])

    def test_kernels_of_two_namespaces_are_not(self):
        libraries = [self.library("02_one/a_x.cuh", space="stage02::a", name="forward", value=1),
                     self.library("02_one/b_x.cuh", space="stage02::b", name="forward", value=2)]
        self.assertEqual(check_symbols.symbol_faults(libraries), [])
        self.assertEqual(len(set(check_symbols.definitions(libraries))), 2)

    def sources(self, *texts):
        files = []
        for n, text in enumerate(texts):
            files.append(self.folder / "02_one" / f"{'ab'[n]}_x.cuh")
            files[-1].parent.mkdir(exist_ok=True)
            files[-1].write_text(text)
        return check_symbols.source_faults(files)

    def test_namespaces_of_kernel_files(self):
        good = "struct Forward;\n"
        rung = "namespace stage02::%s {{\n{}__global__ void f() {{}}\n}}  // namespace stage02::%s\n".format("")
        self.assertEqual(self.sources(rung % ("a", "a"), rung % ("b", "b")), [])
        self.assertIn("belongs to", self.sources(rung % ("a", "a"), rung % ("a", "a"))[0])
        self.assertIn("stage02::<its own>", self.sources("namespace stage03::a {\n}\n")[0])
        self.assertIn("stage02::<its own>", self.sources("namespace stage02 {\n__global__ void f();\n}\n")[0])
        self.assertEqual([], self.sources("namespace stage02 {\nstruct Shared {};\n}\n"))  # no kernel: shared by rungs
        self.assertIn("outside", self.sources(good + rung % ("a", "a"))[0])

    def test_template_arguments_are_ignored(self):
        plain = check_symbols.without_template_arguments
        self.assertEqual(plain("void stage02::b::forward<gpu::fp16, 64>(A<int>, B)"), "stage02::b::forward")
        self.assertEqual(plain("stage02::b::S<A<B<int> > >::f(int)"), "stage02::b::S::f")


if __name__ == "__main__":
    unittest.main()
