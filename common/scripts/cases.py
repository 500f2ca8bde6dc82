#!/usr/bin/env python3
"""Writes into docs/cases.md which tests ask for the right answer of each reported fault.

    cases.py            write it
    cases.py --check    change nothing; exit 1 if it is out of date

A test belongs to a fault if the fault's id ("B" and two digits) stands in its name or in a comment beside it. What no
test names must say what it waits for.
"""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ID = re.compile(r"\bB\d\d(?=_|\b)")
SOURCES = {".cc", ".cu", ".py"}


def tests(root):
    """All test sources, in order."""
    patterns = ["common/**/tests/**/*", "common/verify/stage_tests/*", "[0-9][0-9]_*/*test.cc"]
    return sorted({file for pattern in patterns for file in root.glob(pattern) if file.suffix in SOURCES})


def place(file, root):
    """What the file's tests are tests of."""
    parts = file.relative_to(root).parts
    if parts[:3] == ("common", "verify", "stage_tests"):
        return "every rung"
    return "stage " + parts[0][:2] if parts[0] != "common" else parts[1]


def tested_in(root):
    """id -> Markdown links to the files with its tests."""
    found = {}
    for file in tests(root):
        link = f"[{place(file, root)}]({os.path.relpath(file, root / 'docs')})"
        for fault in set(ID.findall(file.read_text(encoding="utf-8"))):
            found.setdefault(fault, []).append(link)
    return {fault: ", ".join(links) for fault, links in found.items()}


def filled(text, found):
    """The catalogue with its last column written. Raises ValueError for what cannot be right."""
    known = re.findall(r"^\| (B\d\d) \|", text, re.MULTILINE)
    if unknown := sorted(set(found) - set(known)):
        raise ValueError(f"tests name {', '.join(unknown)}, which docs/cases.md does not have")

    def fill(row):
        cell = found.get(row[2])
        if cell is None and not row[3].startswith("waits for "):
            raise ValueError(f"no test names {row[2]}, and docs/cases.md does not say what it waits for")
        return f"{row[1]} {cell or row[3]} |"

    return re.sub(r"^(\| (B\d\d) \|.*\|) ?([^|\n]*?) ?\|$", fill, text, flags=re.MULTILINE)


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(f"cases.py: {' '.join(arguments)}: the only option is --check", file=sys.stderr)
        return 2
    document = ROOT / "docs/cases.md"
    before = document.read_text(encoding="utf-8")
    try:
        after = filled(before, tested_in(ROOT))
    except ValueError as error:
        print(f"cases.py: {error}", file=sys.stderr)
        return 1
    if arguments and after != before:
        print("cases.py: docs/cases.md does not name the tests there are; run common/scripts/cases.py", file=sys.stderr)
        return 1
    if not arguments:
        document.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
