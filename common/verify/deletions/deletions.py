#!/usr/bin/env python3
"""Deletes, one at a time, each call in a rung's source that orders something, and looks who notices.

A barrier, a wait or a commit that can go without a detector's report is either not needed or not tested. Of each file a
copy in which every such call can be switched off is compiled in the build's own way, through the .cu files that include
it, and linked with the driver beside this file. With each call off in turn it is run under the standard schedules until
one notices. A wait for all but N groups is also weakened to N + 1, and an arrival that announces bytes to one that does
not. What neither a wrong value nor a report of the emulator gives away is run under ThreadSanitizer, if that preset is
built. Files that this build does not compile are listed as such.

Exit 0 if every deletion is noticed and the intact kernels give no report, else 1.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Calls that order something. A stage that brings new ones adds them here.
ORDERING = ["bar_sync", "barrier_sync", "barrier_arrive", "bar_warp_sync", "cp_async_commit_group",
            "cp_async_wait_group", "mbarrier_init", "fence_mbarrier_init", "mbarrier_arrive",
            "mbarrier_arrive_expect_tx", "mbarrier_wait_parity", "fence_proxy_async", "cp_async_bulk_commit_group",
            "cp_async_bulk_wait_group", "cp_async_bulk_wait_group_read", "wgmma_fence", "wgmma_commit_group",
            "wgmma_wait_group",
            "tcgen05_alloc", "tcgen05_dealloc", "tcgen05_wait_ld", "tcgen05_wait_st", "tcgen05_fence_before_thread_sync",
            "tcgen05_fence_after_thread_sync", "tcgen05_commit",
            "wait",  # 05: mbarrier_wait_parity and tcgen05_fence_after_thread_sync, of the thread that orders products
            "arrive",  # 04d: mbarrier_arrive by one thread of a warpgroup
            "ld_acquire_gpu", "red_release_gpu_add"]
# Waits for all but so many groups, their template argument.
WAITS = {"cp_async_wait_group", "cp_async_bulk_wait_group", "cp_async_bulk_wait_group_read", "wgmma_wait_group"}

TIMEOUT = 300  # seconds of one run of the driver under the standard schedules
TIMEOUT_A_SEED = 10  # and of what --seeds adds
CHOICE = """#include <cstdlib>
inline const int chosen_change = std::getenv("CHANGE") ? std::atoi(std::getenv("CHANGE")) : -1;
#line 1
"""
NOT_COMPILED = ("not compiled here", "", "")


class Mutant:
    """One change of one call of a kernel file."""

    def __init__(self, file, begin, end, replacement, which, change):
        self.file, self.begin, self.end = file, begin, end
        self.replacement = replacement  # an expression
        self.which = which  # "2nd `bar_sync()`"
        self.change = change  # "deleted"

    def __str__(self):
        return f"{self.file.relative_to(ROOT)}: {self.which} {self.change}"


def ordinal(n):
    """1st, 2nd, 3rd, 4th, ..."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def blank_comments(text):
    """The text with every // comment replaced by spaces, so that positions stay."""
    return re.sub(r"//[^\n]*", lambda comment: " " * len(comment.group()), text)


def call_end(text, open_parenthesis):
    """The position after the parenthesis that closes the one at `open_parenthesis`."""
    depth = 0
    for position in range(open_parenthesis, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    raise ValueError("a parenthesis is not closed")


def weaker_call(name, text, begin, group, end):
    """A call that orders less than the one at text[begin:end], in the form (expression, change in words); None if there is none.

    group: where the call's template argument stands, angle brackets included, or (-1, -1).
    """
    if name in WAITS:
        groups = text[slice(*group)].strip("<> ")
        weaker = f"<{int(groups) + 1 if groups.isdigit() else groups + ' + 1'}>"
        return text[begin : group[0]] + weaker + text[group[1] : end], f"weakened to `{weaker}`"
    if name == "mbarrier_arrive_expect_tx":
        first, depth = begin + len(name) + 1, 0
        for comma in range(first, end):
            depth += {"(": 1, ")": -1}.get(text[comma], 0)
            if text[comma] == "," and depth == 0:
                return f"mbarrier_arrive({text[first:comma]})", "weakened to an arrival without bytes"
    return None


def mutants(file):
    """All deletions and weakenings of a kernel file. Calls of the same words are numbered in the order of the file."""
    text = file.read_text()
    code = blank_comments(text)
    found = []
    seen = collections.Counter()
    names = "|".join(ORDERING)
    for call in re.finditer(rf"\b({names})\s*(<[^<>()]*>)?\s*\(", code):
        end = call_end(code, call.end() - 1)
        deleted = "void()"
        if call[1] == "ld_acquire_gpu":  # in a loop that waits while it is not the number wanted
            end += re.match(r" != \w+", code[end:]).end()
            deleted = "false"
        words = " ".join(text[call.start() : end].split())
        seen[words] += 1
        which = f"{ordinal(seen[words])} `{words}`"
        found.append(Mutant(file, call.start(), end, deleted, which, "deleted"))
        if weaker := weaker_call(call[1], text, call.start(), call.span(2), end):
            found.append(Mutant(file, call.start(), end, weaker[0], which, weaker[1]))
    return found


def switched(text, changes):
    """The source in which the environment variable CHANGE = n makes the n-th of the changes."""
    calls = {}
    for n, change in enumerate(changes):
        calls.setdefault((change.begin, change.end), []).append(f"chosen_change == {n} ? {change.replacement} : ")
    for (begin, end), choices in sorted(calls.items(), reverse=True):
        text = f"{text[:begin]}({''.join(choices)}{text[begin:end]}){text[end:]}"
    return CHOICE + text


def kernel_namespace(file):
    """The namespace of a kernel file, e.g. stage02::b; of a file that kernel files share, that of the first which includes it."""
    users = [other for other in sorted(file.parent.glob("*.cuh")) if file in included(other)]
    for candidate in [file, *users]:
        found = re.search(r"^namespace (stage\d\d::\w+) \{", candidate.read_text(), re.MULTILINE)
        if found:
            return found[1]
    raise ValueError(f"{file} is in no rung's namespace, and no kernel file includes it")


def included(file):
    """All files of stages that a file includes, directly or not."""
    found = set()
    for name in re.findall(r'^#include "(\d\d_[^"]+)"', file.read_text(), re.MULTILINE):
        found |= {ROOT / name} | included(ROOT / name)
    return found


class Build:
    """A configured build: how it compiles a stage, and what the driver is linked with."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.link = json.loads((self.folder / "deletions.json").read_text())
        commands = json.loads((self.folder / "compile_commands.json").read_text())
        self.commands = {entry["file"]: shlex.split(entry["command"]) for entry in commands}

    def sources(self, file):
        """The .cu files of the kernel file's folder that include it and that this build compiles."""
        return [path for path in sorted(file.parent.glob("*.cu"))
                if str(path) in self.commands and file in included(path)]

    def compile(self, file):
        """Returns the driver with all changes of a kernel file to choose from."""
        folder = self.folder / "deletions" / f"{file.parent.name}_{file.stem}"
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(switched(file.read_text(), mutants(file)))
        objects = []
        for source in self.sources(file):
            objects.append(str(folder / f"{source.stem}.o"))
            command = [word for word in self.commands[str(source)] if word != "-g"]
            command[command.index("-o") + 1] = objects[-1]
            command.insert(next(n for n, word in enumerate(command) if word.startswith("-I")), f"-I{folder}")
            run(command, cwd=self.folder)
        driver = folder / "driver"
        # What the changed objects define is not taken from the stage's library, which comes after them.
        run([self.link["compiler"], *self.link["flags"], *self.link["objects"], *objects,
             "-Wl,--start-group", *self.link["libraries"], "-Wl,--end-group", "-pthread", "-o", str(driver)])
        return driver

    def run(self, driver, *arguments, change=-1, timeout=TIMEOUT):
        environment = dict(os.environ, TSAN_OPTIONS="halt_on_error=1 exitcode=66", CHANGE=str(change))
        command = [str(driver), *arguments]
        if "-fsanitize=thread" in self.link["flags"]:
            # ThreadSanitizer's memory map wants addresses that are not randomised.
            machine = os.uname().machine
            if subprocess.run(["setarch", machine, "-R", "true"], capture_output=True).returncode == 0:
                command = ["setarch", machine, "-R", *command]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def run(command, **options):
    subprocess.run(command, check=True, capture_output=True, text=True, **options)


def verdict(finished):
    """What a run of the driver noticed: (kind, schedule, report), or None."""
    if "WARNING: ThreadSanitizer" in finished.stderr:
        schedule = re.findall(r"^schedule (.*)$", finished.stderr, re.MULTILINE)[-1]
        report = finished.stderr.split("WARNING: ThreadSanitizer: ")[1].splitlines()[0]
        return "race report (ThreadSanitizer)", schedule, report
    if finished.returncode == 0:
        return None
    if finished.returncode != 1:
        return "crash", "", f"exit status {finished.returncode}: {finished.stderr.strip().splitlines()[-1:]}"
    found = json.loads(finished.stdout)
    return found["kind"], f"{found['schedule']}, seed {found['seed']}", clause(found["report"])


def noticed(build, driver, *arguments, change=-1, timeout=TIMEOUT):
    """The verdict on one run of the driver."""
    try:
        return verdict(build.run(driver, *arguments, change=change, timeout=timeout))
    except subprocess.TimeoutExpired:
        return "hang", "", f"no end after {timeout} s"


def clause(report):
    """What a report says first, without places that move with every edit or differ between machines."""
    first = re.split(r", issued by|; ", report.splitlines()[0])[0]
    return re.sub(r" at \w+ memory offset \d+| \(warp \d+, lane \d+\)| at \S+:\d+", "", first)


def judge(build, driver, mutant):
    """The verdict on one mutant; None if nobody notices."""
    number = next(n for n, other in enumerate(mutants(mutant.file)) if str(other) == str(mutant))
    return noticed(build, driver, kernel_namespace(mutant.file), change=number)


def compile_all(pool, build, files):
    """kernel file -> driver with its changes."""
    try:
        return dict(zip(files, pool.map(build.compile, files)))
    except subprocess.CalledProcessError as error:
        sys.exit(f"A changed copy does not build:\n{error.stderr}")


def judge_all(pool, build, drivers, work):
    """mutant -> verdict."""
    return dict(zip(work, pool.map(lambda mutant: judge(build, drivers[mutant.file], mutant), work)))


HEADER = """# Deletions

Generated by `python3 common/verify/deletions/deletions.py --output docs/deletions.md`; do not edit.

Each row is a kernel in which one barrier, arrival, wait, fence or commit is gone (or one wait is weaker, or one arrival
announces no bytes), run on small problems under the emulator's standard schedules until one notices. Wrong value: the
verifier rejected the output, or a deterministic rung did not repeat its bits. Protocol report: the emulator saw a broken
rule, such as a read of bytes whose copy is still under way. Race report: two threads used the same bytes, one of them to
write, and no barrier lay between. The intact kernels pass the same runs under all schedules.
Not compiled here: the file belongs to builds for NVIDIA GPUs alone.

| rung | file | which | change | caught by | first schedule that notices | report |
|---|---|---|---|---|---|---|
"""


def row(mutant, found):
    kind, schedule, report = found or ("**nobody**", "", "")
    report = report.replace("|", "\\|")
    rung = kernel_namespace(mutant.file)
    cells = [rung, mutant.file.relative_to(ROOT), mutant.which, mutant.change, kind, schedule, report]
    return f"| {' | '.join(map(str, cells))} |\n"


def intact_reports(pool, build, drivers, seeds=0):
    """What the kernels give rise to with no change made: a list of sentences, empty if all is well."""
    options = ["--seeds", str(seeds)] if seeds else []
    timeout = TIMEOUT + TIMEOUT_A_SEED * seeds
    found = pool.map(lambda file: noticed(build, drivers[file], kernel_namespace(file), *options, timeout=timeout), drivers)
    return [f"{file.relative_to(ROOT)} as it is: {what}" for file, what in zip(drivers, found) if what]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build/emulator", help="a built emulator preset")
    parser.add_argument("--tsan-build", help="a built emulator-tsan preset (default: the one beside --build, if there)")
    parser.add_argument("--files", default="[0-9][0-9]_*/*.cuh", help="kernel files, a pattern from the root")
    parser.add_argument("--output", type=pathlib.Path, help="write the table there")
    parser.add_argument("--seeds", type=int, default=0, help="only run the intact kernels, under this many seeds")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()

    build = Build(arguments.build)
    tsan_folder = pathlib.Path(arguments.tsan_build or f"{build.folder}-tsan")
    tsan = Build(tsan_folder) if (tsan_folder / "deletions.json").exists() else None
    files = [file for file in sorted(ROOT.glob(arguments.files)) if mutants(file)]
    if not files:
        sys.exit(f"No kernel file that matches {arguments.files} has anything to delete.")
    compiled = [file for file in files if build.sources(file)]
    work = [mutant for file in files for mutant in mutants(file)]

    tried = [mutant for mutant in work if mutant.file in compiled]

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        if arguments.seeds:
            drivers = dict.fromkeys(compiled, build.link["driver"])
            failures = intact_reports(pool, build, drivers, arguments.seeds)
            print("\n".join(failures) or f"{len(compiled)} kernel files: no report under {arguments.seeds} seeds")
            return bool(failures)
        drivers = compile_all(pool, build, compiled)
        found = judge_all(pool, build, drivers, tried)
        unnoticed = [mutant for mutant in tried if found[mutant] is None]
        if tsan:
            tsan_drivers = compile_all(pool, tsan, sorted({mutant.file for mutant in unnoticed}))
            found |= judge_all(pool, tsan, tsan_drivers, unnoticed)
        failures = [f"{mutant}, and nobody notices" for mutant in tried if found[mutant] is None]
        table = HEADER + "".join(row(mutant, found.get(mutant, NOT_COMPILED)) for mutant in work)
        print(table)
        failures += intact_reports(pool, build, drivers)
    if arguments.output:
        arguments.output.parent.mkdir(exist_ok=True)
        arguments.output.write_text(table)
    print("\n".join(failures) or f"all {len(tried)} deletions are noticed")
    for file in files:
        if file not in compiled:
            print(f"{file.relative_to(ROOT)} is not compiled here: its {len(mutants(file))} deletions were not tried")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
