#!/usr/bin/env python3
"""Counts, in each fast kernel of stages 04 and 05, the machine instructions that show what the rung is.

    sass.py BUILD_FOLDER [--json FILE]     FILE: docs/results/sass.json, if not given

Reads the stages' libraries of a CUDA build by cuobjdump, prints a table, and writes FILE with the compiler and the
commit. Which kernels are fast, fast_kernels.txt beside this script says. Instructions are counted as they stand in the
code, not as they are executed. Exit: 0 all well, 1 a fast kernel is in no library or has no product of its
architecture, 2 bad arguments, 77 there is no cuobjdump (it comes with the CUDA toolkit).
"""
import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys

import check_ptxas

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGES = ("04", "05")

# What is counted; the first of each architecture is its product. Tensor copies (UTMA...), bulk copies and bulk additions
# (UBLK...), registers that move between warpgroups, loads and stores of tensor memory.
COUNTED = {
    "sm_90a": ["HGMMA", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED", "USETMAXREG"],
    "sm_100a": ["UTCHMMA", "LDTM", "STTM", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED", "USETMAXREG"],
}

ARCHITECTURE = re.compile(r"^\s*code for (sm_\w+)")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z]\w*)")


def parse(listing):
    """{(architecture, symbol): Counter of opcodes without their modifiers} of what cuobjdump -sass prints."""
    architecture, kernels, opcodes = None, {}, None
    for line in listing.splitlines():
        if match := ARCHITECTURE.match(line):
            architecture, opcodes = match[1], None
        elif match := FUNCTION.match(line):
            opcodes = kernels.setdefault((architecture, match[1]), collections.Counter())
        elif (match := INSTRUCTION.match(line)) and opcodes is not None:
            opcodes[match[1]] += 1
    return kernels


def rows(kernels, patterns):
    """A row for each kernel that matches a pattern, in the order of the patterns."""
    symbols = [check_ptxas.Kernel(symbol, architecture) for architecture, symbol in kernels if architecture in COUNTED]
    check_ptxas.demangle(symbols)
    found = []
    for pattern in patterns:
        for kernel in sorted(symbols, key=lambda kernel: (kernel.architecture, kernel.name)):
            opcodes = kernels[kernel.architecture, kernel.symbol]
            if re.search(pattern, kernel.name):
                counts = {name: opcodes[name] for name in COUNTED[kernel.architecture]}
                found.append({"kernel": re.sub(r">\(.*", ">", kernel.name), "architecture": kernel.architecture,
                              "instructions": opcodes.total(), "counts": counts})  # fmt: skip
    return found


def faults(found, patterns):
    """A sentence for each pattern whose kernels are missing, or among whose kernels none multiplies as its architecture can."""
    for pattern in patterns:
        matching = [row for row in found if re.search(pattern, row["kernel"])]
        if not matching:
            yield f"No kernel of the libraries matches the pattern '{pattern}' of fast kernels."
        for architecture in dict.fromkeys(row["architecture"] for row in matching):
            product = COUNTED[architecture][0]
            if not any(row["counts"][product] for row in matching if row["architecture"] == architecture):
                yield f"No kernel of '{pattern}' for {architecture} has an {product}."


def table(found):
    """A line for each row, a column for each instruction that is counted for any of them."""
    names = list(dict.fromkeys(name for row in found for name in row["counts"]))
    lines = [f"{'arch':8} {'all':>6} " + " ".join(f"{name:>10}" for name in names) + "  kernel"]
    for row in found:
        counts = " ".join(f"{row['counts'].get(name, '-'):>10}" for name in names)
        lines.append(f"{row['architecture']:8} {row['instructions']:6} {counts}  {row['kernel']}")
    return "\n".join(lines)


def output_of(*command):
    """What a program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compiler(folder):
    """The nvcc that a build was configured with, by its version, or None if it is no CUDA build."""
    for facts in folder.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        if version := re.search(r'^set\(CMAKE_CUDA_COMPILER_VERSION "([\d.]+)"\)$', facts.read_text(encoding="utf-8"), re.MULTILINE):
            return f"nvcc {version[1]}"
    return None


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="a CUDA build, build/cuda")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "docs/results/sass.json")
    arguments = parser.parse_args(arguments)
    if not shutil.which("cuobjdump"):
        print("sass.py: there is no cuobjdump in PATH. It comes with the CUDA toolkit.", file=sys.stderr)
        return 77
    nvcc = compiler(arguments.folder)
    libraries = sorted(path for stage in STAGES for path in arguments.folder.glob(f"**/libstage_{stage}.a"))
    if not nvcc or not libraries:
        print(f"sass.py: {arguments.folder} is no CUDA build with stage {' or '.join(STAGES)}; build the preset cuda first.",
              file=sys.stderr)  # fmt: skip
        return 2
    patterns = [pattern for pattern in check_ptxas.default_patterns() if any(f"stage{stage}::" in pattern for stage in STAGES)]
    kernels = {}
    for library in libraries:
        kernels |= parse(output_of("cuobjdump", "-sass", str(library)))
    found = rows(kernels, patterns)
    print(table(found))
    results = {"compiler": nvcc, "commit": output_of("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD").strip(),
               "command": "sass.py", "rows": found}  # fmt: skip
    arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sentences = list(faults(found, patterns))
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
