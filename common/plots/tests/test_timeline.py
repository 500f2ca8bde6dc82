"""plots/timeline.py: lanes are read right, a picture is drawn, and bad input is answered in one sentence."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import timeline

RECORDED = pathlib.Path(__file__).parents[3] / "docs" / "results"


def span(track, category, begin, length):
    return {"ph": "X", "name": "...", "cat": category, "pid": 7, "tid": track, "ts": begin, "dur": length}


def track(number, name):
    return {"ph": "M", "name": "thread_name", "pid": 7, "tid": number, "args": {"name": name}}


def trace(*events, emulated=False):
    process = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "CTA 7"}}
    tracks = [track(3, "warpgroup 1"), track(2, "warpgroup 1, products")]
    about = {"rung": "04c", "machine": "NVIDIA H200", "emulated": emulated, "problem": "N=8", "clock": "cycles",
             "commit": "abc"}  # fmt: skip
    return {"traceEvents": [process, *tracks, *events], "metadata": about}


class Timeline(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, text):
        path = self.folder / "in.json"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def run_on(self, *sources):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = timeline.main([*sources, str(self.folder / "out.png")])
        return status, errors.getvalue()

    def test_lanes_are_in_the_order_of_their_tracks(self):
        lanes = timeline.read_trace(
            self.write(json.dumps(trace(span(3, "wait", 0, 5), span(2, "product", 5, 7), span(3, "softmax", 12, 1))))
        )["lanes"]
        self.assertEqual(["warpgroup 1, products", "warpgroup 1"], list(lanes))
        self.assertEqual([("product", 5, 7, "...")], lanes["warpgroup 1, products"])
        self.assertEqual([("wait", 0, 5, "..."), ("softmax", 12, 1, "...")], lanes["warpgroup 1"])

    def test_title_says_emulated_or_measured(self):
        about = trace()["metadata"]
        self.assertEqual("04c: measured on NVIDIA H200", timeline.title_of(about))
        self.assertEqual("04c: emulated, logical time", timeline.title_of(about | {"emulated": True}))

    def test_draws_one_and_several(self):
        source = self.write(json.dumps(trace(span(3, "wait", 0, 5), span(2, "product", 5, 7))))
        for sources in ([source], [source, source, source]):
            self.assertEqual((0, ""), self.run_on(*sources))
            self.assertTrue((self.folder / "out.png").read_bytes().startswith(b"\x89PNG"))
            (self.folder / "out.png").unlink()

    def test_bad_input(self):
        good = trace(span(3, "wait", 0, 5))
        for results, words in (
            ({}, "metadata"),
            ({**good, "metadata": {}}, "rung"),
            ({**good, "traceEvents": 3}, "not a trace"),
            (trace(), "no spans"),
            (trace(span(5, "wait", 0, 5)), "5"),
            (trace(span(3, "rest", 0, 5)), "'rest'"),
            (trace(span(3, "wait", 0, -5)), "-5"),
            (trace(span(3, "wait", "soon", 5)), "'soon'"),
        ):
            status, errors = self.run_on(self.write(json.dumps(results)))
            self.assertEqual((status, len(errors.splitlines())), (2, 1), errors)
            self.assertIn(words, errors)
        self.assertEqual(2, self.run_on()[0])

    def test_recorded_traces(self):
        """Of 8 key tiles a warpgroup multiplies twice and has a softmax each; nobody does two things at once."""
        for rung in "bcd":
            lanes = timeline.read_trace(RECORDED / f"timeline_04{rung}_emulator.json")["lanes"]
            for name, spans in lanes.items():
                for before, after in zip(spans, spans[1:]):
                    self.assertLessEqual(before[1] + before[2], after[1], name)
            for number in (1, 2):
                self.assertEqual(16, len(lanes[f"warpgroup {number}, products"]))
            events = json.loads((RECORDED / f"timeline_04{rung}_emulator.json").read_text())["traceEvents"]
            self.assertEqual(16, sum(event["name"] == "softmax" for event in events))

    def test_warpgroups_take_turns(self):
        """A turn for the first S, one for each of seven pairs of O and S, one for the last O; none in 04b."""
        for rung, turns in (("b", 0), ("c", 9), ("d", 9)):
            events = json.loads((RECORDED / f"timeline_04{rung}_emulator.json").read_text())["traceEvents"]
            begins = sorted(
                (event["ts"] + event["dur"], event["tid"]) for event in events if event["name"] == "wait for the turn"
            )
            self.assertEqual([3, 5] * turns, [who for _, who in begins])


if __name__ == "__main__":
    unittest.main()
