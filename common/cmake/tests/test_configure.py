"""Whatever a machine lacks is said in one sentence that names what to do. Machines are faked: each case configures the
project in an empty folder, with a PATH or an nvcc of its own."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CMAKE = shutil.which("cmake")

NVCC = """#!/bin/sh
case $1 in
    --version) echo "Cuda compilation tools, release {version}, V{version}.88" ;;
    --list-gpu-arch) printf 'compute_75\\ncompute_80\\ncompute_90\\n' ;;
    *) exit 1 ;;
esac
"""


class Configure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()
        self.program("nvidia-smi", "#!/bin/sh\nexit 9\n")  # no case sees a GPU

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def nvcc(self, version):
        return f"-DCMAKE_CUDA_COMPILER={self.program('nvcc', NVCC.format(version=version))}"

    def configure(self, *options, path=None):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA", "CXX", "CMAKE_"))}
        environment["PATH"] = path or f"{self.folder}/bin:{os.environ['PATH']}"
        command = [CMAKE, "-S", str(ROOT), "-B", str(self.folder / "build"), *options]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        return result.returncode, " ".join((result.stdout + result.stderr).split())

    def assert_refused(self, sentence, *options, path=None):
        status, text = self.configure(*options, path=path)
        self.assertNotEqual(0, status)
        self.assertIn(sentence, text)
        self.assertEqual(1, text.count("CMake Error"), text)

    def test_unknown_machine(self):
        self.assert_refused("GPU_MACHINE is 'opencl'; it can be emulator (any CPU) or cuda (an NVIDIA GPU).",
                            "-DGPU_MACHINE=opencl")

    def test_sanitizers(self):
        self.assert_refused("SANITIZER is 'leak'; it can be empty, address or thread.", "-DSANITIZER=leak")
        self.assert_refused("On a GPU use compute-sanitizer", "-DSANITIZER=thread", "-DGPU_MACHINE=cuda")

    def test_no_cxx_compiler(self):
        self.assert_refused("No C++ compiler was found. Install one that knows C++20 (Debian, Ubuntu: apt-get",
                            path=f"{self.folder}/bin")

    def test_no_cxx20(self):
        real = shutil.which("c++")
        refuse = "for argument; do case $argument in *20|*2a) exit 1 ;; esac; done"
        old = self.program("old-c++", f'#!/bin/sh\n{refuse}\nexec {real} "$@"\n')
        self.assert_refused("can (Debian, Ubuntu: apt-get install g++); name yours with", f"-DCMAKE_CXX_COMPILER={old}")

    def test_packages_are_named_together(self):
        self.assert_refused("Not found: Eigen3, Boost.Context. On Debian and Ubuntu: apt-get install libeigen3-dev "
                            "libboost-context-dev", "-DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON",
                            "-DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON")  # fmt: skip
        others = ("GTest", "benchmark", "CLI11", "nlohmann_json")
        self.assert_refused("Not found: GTest, GMock, benchmark, CLI11, nlohmann_json. On Debian and Ubuntu: apt-get "
                            "install libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev",
                            "-DGMOCK_HEADERS=OFF",
                            *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in others),
                            *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=OFF" for name in ("Eigen3", "Boost")))  # fmt: skip

    def test_no_nvcc(self):
        folders = os.environ["PATH"].split(":")
        without = ":".join(folder for folder in folders if not os.path.exists(f"{folder}/nvcc"))
        self.assert_refused("there is no nvcc in PATH or /usr/local/cuda/bin. Install the CUDA Toolkit 13.0 or newer",
                            "-DGPU_MACHINE=cuda", "-DCMAKE_IGNORE_PATH=/usr/local/cuda/bin", path=without)

    def test_not_nvcc(self):
        other = self.program("nvcc", "#!/bin/sh\necho hello\n")
        self.assert_refused("does not answer like nvcc", "-DGPU_MACHINE=cuda", f"-DCMAKE_CUDA_COMPILER={other}")

    def test_old_toolkit(self):  # B74
        self.assert_refused("is version 12.4; 13.0 or newer is needed", "-DGPU_MACHINE=cuda", self.nvcc("12.4"))

    def test_architecture_that_the_toolkit_left_behind(self):  # B72
        self.assert_refused("CMAKE_CUDA_ARCHITECTURES asks for 70; nvcc 13.0 compiles for 75 80 90.",
                            "-DGPU_MACHINE=cuda", self.nvcc("13.0"), "-DCMAKE_CUDA_ARCHITECTURES=80;70")

    def test_native_without_a_gpu(self):
        self.assert_refused("CMAKE_CUDA_ARCHITECTURES is native and no GPU answers here", "-DGPU_MACHINE=cuda",
                            self.nvcc("13.0"), "-DCMAKE_CUDA_ARCHITECTURES=native")

    def test_host_compiler_newer_than_the_toolkit_takes(self):
        header = self.folder / "include" / "crt" / "host_config.h"
        header.parent.mkdir(parents=True)
        header.write_text("#if __GNUC__ > 9\n#if (__clang_major__ >= 10) || (__clang_major__ < 3)\n")
        status, text = self.configure("-DGPU_MACHINE=cuda", self.nvcc("13.0"))
        self.assertNotEqual(0, status)
        self.assertRegex(text, "too new for CUDA 13.0, which takes (GNU|Clang) up to 9. Install an older one")
        self.assertIn("CMake Warning", text)
        self.assertIn("No NVIDIA GPU answers here", text)


if __name__ == "__main__":
    unittest.main()
