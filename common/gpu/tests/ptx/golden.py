#!/usr/bin/env python3
"""Compares the PTX that nvcc makes of wrappers*.cu with golden.txt, assembles every form of wgmma, tcgen05.ld and tcgen05.st, and checks that no
asm of common/gpu is left out.

Exits with 0 if all is well, 1 if something differs, 77 if there is no nvcc.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[3]
REGISTER = r"%(?!clock64)[a-z]+\d+"


def kernels(ptx):
    """{kernel name: its instructions, without comments and the braces and semicolons around them}"""
    result = {}
    for name, body in re.findall(r"^\.visible \.entry (\w+)\(.*?\)\n\{\n(.*?)^\}", ptx, re.MULTILINE | re.DOTALL):
        body = re.sub(r"//[^\n]*", "", body)
        lines = [re.sub(r"\s+", " ", line.strip()) for line in body.split(";")]
        lines = [re.sub(r"^[{}] ?", "", line) for line in lines]
        result[name] = [line for line in lines if line]
    return result


def first_comma(operands):
    """Where the first operand ends."""
    depth = 0
    for i, character in enumerate(operands):
        depth += character in "{[" or -(character in "}]")
        if character == "," and depth == 0:
            return i
    return len(operands)


def named_operands(kernel, instructions):
    """The same instructions with every register replaced by where its value comes from or goes to."""
    source, destination = {}, {}
    for line in instructions:
        if match := re.fullmatch(rf"ld\.param\.\w+ ({REGISTER}), \[{kernel}_param_(\d+)(\+\d+)?\]", line):
            source[match[1]] = f"param{match[2]}{match[3] or ''}"
        elif match := re.fullmatch(rf"mov\.\w+ ({REGISTER}), (-?\d+)", line):
            source[match[1]] = match[2]
        elif match := re.fullmatch(rf"mov\.\w+ ({REGISTER}), {kernel}_param_(\d+)", line):
            source[match[1]] = f"&param{match[2]}"
        elif match := re.fullmatch(rf"or\.b64 ({REGISTER}), ({REGISTER}), (\d+)", line):
            source[match[1]] = f"{source.get(match[2], '_')}|{int(match[3]):#x}"
        elif match := re.fullmatch(rf"(?:cvta\.to\.global|cvta\.param|mov)\.\w+ ({REGISTER}), ({REGISTER})", line):
            source[match[1]] = source.get(match[2], "_")
    for line in instructions:
        if match := re.fullmatch(rf"st\.global\.\w+ \[({REGISTER})(?:\+(\d+))?\], ({REGISTER})", line):
            destination[match[3]] = f"out+{match[2] or 0}"
    result = []
    for line in instructions:
        opcode, _, operands = line.partition(" ")
        end = first_comma(operands)
        first = re.sub(REGISTER, lambda r: destination.get(r[0], source.get(r[0], "_")), operands[:end])
        others = re.sub(REGISTER, lambda r: source.get(r[0], destination.get(r[0], "_")), operands[end:])
        result.append(f"{opcode} {first}{others}".strip())
    return result


def compare(ptx, golden):
    """Sentences about what differs."""
    present = kernels(ptx)
    differences = [f"{name} has no line in golden.txt." for name in present.keys() - golden.keys()]
    for name, expected in golden.items():
        lines = named_operands(name, present.get(name, []))
        if lines.count(expected) != 1:
            found = [line for line in lines if line.split(" ")[0].split(".")[0] == expected.split(".")[0]]
            differences.append(f"{name}: expected once\n    {expected}\n  but nvcc writes\n    " +
                               "\n    ".join(found or ["nothing of the kind"]))
    return differences


def read_golden(text):
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(maxsplit=1) for line in lines)


def uncovered(golden):
    """Instructions in asm statements of common/gpu that no golden line has."""
    opcodes = {line.split(" ")[0] for line in golden.values()}
    result = []
    for header in sorted((ROOT / "common/gpu").glob("*.h")):
        # The first instruction of each, after a brace, declarations and predicates; %n in it is a number.
        start = r'\basm(?: volatile)?\(\s*(?:"\{\\n"\s*)?(?:"(?:\.reg|setp)[^"]*"\s*)*"([\w.:%]+)'
        for opcode in re.findall(start, header.read_text()):
            pattern = re.compile(re.sub(r"%\d+", r"\\d+", re.escape(opcode)))
            if not any(map(pattern.fullmatch, opcodes)):
                result.append(f"{header.name} has the instruction {opcode}, and golden.txt does not.")
    return result


def self_check():
    """Two operands that change places are noticed."""
    ptx = (".visible .entry k(\n)\n{\n ld.param.u64 %rd1, [k_param_0];\n ld.param.f32 %f1, [k_param_1];\n"
           " ld.param.f32 %f2, [k_param_2];\n cvta.to.global.u64 %rd2, %rd1;\n // begin inline asm\n"
           " op.x %r1, %f2, %f1;\n // end inline asm\n st.global.u32 [%rd2+4], %r1;\n ret;\n}\n")
    assert compare(ptx, {"k": "op.x out+4, param2, param1"}) == []
    assert len(compare(ptx, {"k": "op.x out+4, param1, param2"})) == 1
    assert len(compare(ptx, {"k": "op.y out+4, param2, param1"})) == 1
    assert len(compare(ptx, {"k": "op.x out+0, param2, param1"})) == 1
    assert len(compare(ptx, {})) == 1


class Refused(Exception):
    pass


def compiled(nvcc, file, target, result, output):
    """What nvcc writes to `output`."""
    command = [nvcc, "-std=c++20", f"-arch={target}", result, "--expt-relaxed-constexpr", "-DGPU_EMULATOR=0", f"-I{ROOT}",
               str(FOLDER / file), "-o", output]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise Refused(f"nvcc does not compile {file} for {target}:\n{run.stderr}")
    return run.stdout


def check_targets(nvcc):
    """B70: 90a alone assembles wgmma, 100a tcgen05; neither what came before nor 90 or 100, which run on the same GPU."""
    for file, right, wrong in (("wgmma_widths.cu", "sm_90a", ("sm_90", "sm_100a")),
                               ("tensor_memory_forms.cu", "sm_100a", ("sm_100", "sm_90a"))):
        compiled(nvcc, file, right, "-cubin", os.devnull)
        for target in wrong:
            try:
                compiled(nvcc, file, target, "-cubin", os.devnull)
            except Refused as refused:
                if "not supported on .target" not in str(refused):
                    raise
            else:
                raise Refused(f"nvcc compiles {file} for {target}; it should refuse")


def main():
    self_check()
    golden = read_golden((FOLDER / "golden.txt").read_text())
    differences = uncovered(golden)
    nvcc = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if nvcc:
        try:
            ptx = compiled(nvcc, "wrappers.cu", "compute_90", "-ptx", "-")
            ptx += compiled(nvcc, "wrappers_90a.cu", "compute_90a", "-ptx", "-")
            ptx += compiled(nvcc, "wrappers_100a.cu", "compute_100a", "-ptx", "-")
            check_targets(nvcc)
            differences += compare(ptx, golden)
        except Refused as refused:
            differences.append(str(refused))
    for difference in differences:
        print(difference)
    if differences:
        sys.exit(1)
    if not nvcc:
        print("skipped: there is no nvcc in PATH or /usr/local/cuda/bin, so PTX cannot be compared")
        sys.exit(77)
    print(f"{len(golden)} instructions are as they should be")


if __name__ == "__main__":
    main()
