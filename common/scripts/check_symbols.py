#!/usr/bin/env python3
"""No two rungs may define a kernel of one name.

Two templates of one name in two files are one symbol to the linker: a host compiler merges them without a word, and the
wrong kernel would be verified. Two checks:

  sources   every __global__ function and every struct of a kernel file stands in the file's own namespace
            stageNN::<own>, and no other kernel file has that namespace; a file without kernels, which rungs of a stage
            share, opens stageNN
  symbols   no function of a stage's namespace is defined from two source files in the given static libraries

Exit 0 if both hold, else 1 with a sentence for each name.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def source_faults(files):
    """Sentences about kernel files whose names another rung could define too."""
    faults, owner = [], {}
    for file in files:
        code = re.sub(r"//[^\n]*", "", file.read_text())
        stage = f"stage{file.parent.name[:2]}"
        opened = re.findall(r"^namespace\s+([\w:]*)\s*\{", code, re.MULTILINE)
        if opened == [stage] and "__global__" not in code:
            continue  # no kernel: what rungs of a stage share
        if len(opened) != 1 or not re.fullmatch(rf"{stage}::\w+", opened[0]):
            faults.append(f"{file}: a kernel file opens one namespace, {stage}::<its own>; this one opens {opened}")
            continue
        outside = code[: code.index("namespace " + opened[0])] + code[code.rindex("}") :]
        if re.search(r"__global__|__device__|\bstruct\b", outside):
            faults.append(f"{file}: something is defined outside of namespace {opened[0]}")
        if opened[0] in owner:
            faults.append(f"{file}: namespace {opened[0]} belongs to {owner[opened[0]]}")
        owner.setdefault(opened[0], file)
    return faults


def without_template_arguments(name):
    """`void a::f<T, (G)1>(int)` -> `a::f`."""
    depth, plain = 0, ""
    for character in name.replace("operator<", "operator_less"):
        depth -= character == ">"
        plain += character if depth == 0 and character != ">" else ""
        depth += character == "<"
    return plain.replace("<", "").split("(")[0].split()[-1]


def definitions(libraries):
    """(name without template arguments, source file) of every function of a stage's namespace."""
    command = ["nm", "-C", "-l", "--defined-only", *map(str, libraries)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        symbol, _, place = line.partition("\t")
        match = re.match(r"[0-9a-f]+ [TtWw] (.*)", symbol)
        if "(anonymous namespace)" in symbol:  # each file's own, whatever others call theirs
            continue
        if match and place and re.search(r"\bstage\d\d::", match[1]):
            yield without_template_arguments(match[1]), place.rpartition(":")[0]


def symbol_faults(libraries):
    """Sentences about functions that two source files define."""
    files = {}
    for name, file in definitions(libraries):
        if name.startswith("stage"):
            files.setdefault(name, set()).add(str(pathlib.Path(file).resolve()))
    return [f"{name} is defined in " + " and ".join(sorted(where)) for name, where in files.items() if len(where) > 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", type=pathlib.Path, help="static libraries of the stages, built with -g")
    arguments = parser.parse_args()
    found = {name for name, _ in definitions(arguments.libraries)}
    faults = source_faults(sorted(ROOT.glob("[0-9][0-9]_*/*.cuh"))) + symbol_faults(arguments.libraries)
    if not found:
        faults.append("No function of a stage was found in the libraries: are they built with -g?")
    print("\n".join(faults) or f"{len(found)} functions of the stages, each defined in one file")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
