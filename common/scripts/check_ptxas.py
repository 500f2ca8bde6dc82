#!/usr/bin/env python3
"""Prints what ptxas said of every kernel of a CUDA build, and fails where a fast kernel spills registers.

    check_ptxas.py BUILD_FOLDER [PATTERN ...]

Reads the *.ptxas files that keep_ptxas_log.sh leaves beside the objects. PATTERN is a regular expression searched for
in the kernel's name (namespaces included); without any, the patterns are the lines of fast_kernels.txt beside this
script. A kernel that matches one claims speed: register spills and ptxas' performance remarks (C75xx, such as
serialised wgmma) are then errors. So is a pattern that no kernel matches. Exit: 0 all well, 1 a fast kernel is not,
2 bad arguments.
"""

import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
REMARK = re.compile(r"\(C75\d\d\)")
REMARK_KERNEL = re.compile(r"function '(\w+)'")


@dataclass
class Kernel:
    """One kernel for one architecture; sizes in bytes, registers a thread."""

    symbol: str
    architecture: str
    name: str = ""
    registers: int = 0
    shared: int = 0
    spills: int = 0
    remarks: list = field(default_factory=list)


def parse(log):
    """The kernels of one log, in its order."""
    kernels = []
    entry = None
    loose_remarks = []
    for line in log.splitlines():
        if match := ENTRY.search(line):
            entry = Kernel(*match.groups())
            kernels.append(entry)
        elif REMARK.search(line):
            loose_remarks.append((len(kernels), line.strip()))
        elif (match := SPILLS.search(line)) and entry:  # of the kernel, or of a function that it calls
            entry.spills += int(match.group(2)) + int(match.group(3))
        elif (match := REGISTERS.search(line)) and entry:
            entry.registers = int(match.group(1))
            if shared := SHARED.search(line):
                entry.shared = int(shared.group(1))
    # A remark names its function; one that names none may belong to any kernel of the log.
    for position, remark in loose_remarks:
        named = REMARK_KERNEL.search(remark)
        owners = [kernel for kernel in kernels if named and kernel.symbol == named.group(1)] or kernels
        for kernel in owners:
            if remark not in kernel.remarks:
                kernel.remarks.append(remark)
    return kernels


def demangle(kernels):
    """Fills in the readable names; without c++filt (binutils) they stay as ptxas wrote them."""
    for kernel in kernels:
        kernel.name = kernel.symbol
    if kernels and shutil.which("c++filt"):
        symbols = "\n".join(kernel.symbol for kernel in kernels)
        names = subprocess.run(["c++filt"], input=symbols, capture_output=True, text=True, check=True).stdout
        for kernel, name in zip(kernels, names.splitlines()):
            kernel.name = re.sub(r"^void ", "", name)


def problems(kernels, patterns):
    """The sentences to fail with."""
    sentences = []
    for pattern in patterns:
        fast = [kernel for kernel in kernels if re.search(pattern, kernel.name)]
        if not fast:
            sentences.append(f"No kernel of the build matches the pattern '{pattern}' of fast kernels.")
        for kernel in fast:
            where = f"{kernel.name} for {kernel.architecture}"
            if kernel.spills:
                sentences.append(f"{where} spills registers: {kernel.spills} bytes stored and loaded.")
            sentences.extend(f"{where}: {remark}" for remark in kernel.remarks)
    return list(dict.fromkeys(sentences))


def table(kernels, patterns):
    lines = [f"{'arch':8} {'registers':>9} {'shared':>7} {'spills':>7}  fast  kernel"]
    for kernel in kernels:
        fast = "yes" if any(re.search(pattern, kernel.name) for pattern in patterns) else ""
        name = kernel.name if len(kernel.name) <= 120 else kernel.name[:117] + "..."
        figures = f"{kernel.architecture:8} {kernel.registers:9} {kernel.shared:7} {kernel.spills:7}"
        lines.append(f"{figures}  {fast:4}  {name}")
    return "\n".join(lines)


def default_patterns():
    text = (pathlib.Path(__file__).parent / "fast_kernels.txt").read_text()
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    folder = pathlib.Path(arguments[0])
    patterns = arguments[1:] or default_patterns()
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            print(f"'{pattern}' is not a regular expression: {error}.", file=sys.stderr)
            return 2
    # A log whose object is gone belongs to a source that was deleted or renamed.
    logs = [log for log in sorted(folder.rglob("*.ptxas")) if log.with_suffix("").exists()]
    if not logs:
        print(f"There is no *.ptxas file in {folder}; build the preset cuda first.", file=sys.stderr)
        return 2
    kernels = []
    for log in logs:
        kernels += parse(log.read_text(errors="replace"))
    demangle(kernels)
    kernels.sort(key=lambda kernel: (kernel.name, kernel.architecture))
    print(table(kernels, patterns))
    sentences = problems(kernels, patterns)
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
