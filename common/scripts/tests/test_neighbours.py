"""A rung is one idea more than the rung before it: neighbours differ by few lines of code, unless a rung's header says that it is a
restart, and no file of a stage is longer than a reader takes in."""
import difflib
import itertools
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
LONGEST = 320  # lines of a file
LONGEST_OF_ROLES = 450  # of a stage whose warps have roles: each role is a program of its own
WITH_ROLES = ("04", "05")
FARTHEST = 120  # lines of code between neighbours


def header(text):
    """The comment that a file begins with."""
    return "".join(itertools.takewhile(lambda line: line.startswith("//"), text.splitlines(keepends=True)))


def code(text):
    """The lines that are no comment and not empty, wherever they are indented to."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("//")]


def distance(before, after):
    """Lines of code that go, or that come, whichever are more: a changed line counts once."""
    before, after = code(before), code(after)
    shared = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return max(len(before), len(after)) - sum(block.size for block in shared)


def ladders(root):
    """The rungs of each stage and pass in their order: 03_fa2/a_*.cuh, b_*.cuh, ...; backward_a.cuh, backward_b.cuh, ..."""
    for stage in sorted(root.glob("[0-9][0-9]_*")):
        for pattern in ("[a-z]_*.cuh", "backward_[a-z].cuh"):
            yield sorted(stage.glob(pattern))


def faults(root):
    """A sentence for each rung that is far from its neighbour, and for each file that is long."""
    for rungs in ladders(root):
        for before, after in itertools.pairwise(rungs):
            lines = distance(before.read_text(), after.read_text())
            if lines > FARTHEST and not re.search(r"\brestart\b", header(after.read_text())):
                yield f"{after.relative_to(root)} differs from {before.name} by {lines} lines of code; {FARTHEST} are allowed."
    for file in sorted(root.glob("[0-9][0-9]_*/*.cu*")):
        lines = len(file.read_text().splitlines())
        longest = LONGEST_OF_ROLES if file.parent.name.startswith(WITH_ROLES) else LONGEST
        if lines > longest:
            yield f"{file.relative_to(root)} has {lines} lines; {longest} are allowed."


class Neighbours(unittest.TestCase):
    def test_rungs_are_close_and_files_short(self):
        self.assertEqual([], list(faults(ROOT)))

    def test_distance(self):
        self.assertEqual(0, distance("// one\nint a;\n", "// other\n\nint a;\n    // why\n"))
        self.assertEqual(1, distance("int a;\nint b;\n", "int a;\nint c;\n"))
        self.assertEqual(2, distance("int a;\n", "int a;\nint b;\nint c;\n"))
        self.assertEqual(2, distance("int a;\nint b;\nint c;\n", "int c;\n"))

    def test_what_is_far_or_long_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "07_new").mkdir()
            far = "".join(f"int b{n};\n" for n in range(FARTHEST + 1))
            (root / "07_new/a_first.cuh").write_text("int a;\n")
            (root / "07_new/b_second.cuh").write_text("// 07b\n" + far)
            (root / "07_new/stage.cu").write_text("//\n" * (LONGEST + 1))
            self.assertEqual(["07_new/b_second.cuh differs from a_first.cuh by 121 lines of code; 120 are allowed.",
                              "07_new/stage.cu has 321 lines; 320 are allowed."], list(faults(root)))
            (root / "07_new/b_second.cuh").write_text("// 07b: a restart\n" + far)
            (root / "07_new/stage.cu").write_text("//\n" * LONGEST)
            self.assertEqual([], list(faults(root)))


if __name__ == "__main__":
    unittest.main()
