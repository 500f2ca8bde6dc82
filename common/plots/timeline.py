#!/usr/bin/env python3
"""Draws what the warpgroups of a CTA are at, one trace below the other.

    timeline.py results/timeline_04b.json results/timeline_04c.json results/timeline_04d.json results/timeline.png

A trace is what stage_04_timeline or trace writes. The thick bar of a warpgroup or role is what its threads are at, the thin one above
it what engines do for it. Exit: 0 drawn, 2 bad input (said in one sentence).
"""

import sys

import picture
from picture import BadResults, read_json

COLOURS = {"product": "#1f4e8c", "issue": "#a9c1e0", "softmax": "#d9822b", "turn": "#efe3b0",
           "wait": "#d0d0d0", "copy": "#5b8c3a", "work": "#d9822b"}  # fmt: skip
WORDS = {"product": "product on the tensor cores", "issue": "its instructions, and the wait for it", "softmax": "softmax",
         "turn": "wait for the turn", "wait": "wait", "copy": "copy", "work": "its own work"}  # fmt: skip
ABOUT = ("rung", "machine", "problem", "clock", "commit")


def read_trace(path):
    """{about, lanes: {name: [(category, begin, length, words), ...]}}, lanes in the order of their tracks. Raises BadResults."""
    trace = read_json(path)
    try:
        about = {key: str(trace["metadata"][key]) for key in ABOUT} | {"emulated": bool(trace["metadata"]["emulated"])}
        events = trace["traceEvents"]
        named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        lanes = {named[track]: [] for track in sorted(named)}
        for event in events:
            if event["ph"] != "X":
                continue
            begin, length, category, words = event["ts"], event["dur"], event["cat"], str(event["name"])
            if not all(isinstance(number, (int, float)) and number >= 0 for number in (begin, length)):
                raise BadResults(f"{path} has a span from {begin!r} of length {length!r}; both are numbers, 0 or more.")
            if category not in COLOURS:
                raise BadResults(f"{path} has a span of the category {category!r}; there are {', '.join(COLOURS)}.")
            lanes[named[event["tid"]]].append((category, begin, length, words))
    except (KeyError, TypeError) as error:
        raise BadResults(f"{path} is not a trace of stage_04_timeline or trace: {error!r}.") from error
    if not any(lanes.values()):
        raise BadResults(f"{path} has no spans.")
    return {"about": about, "lanes": lanes}


def title_of(about):
    how = "emulated, logical time" if about["emulated"] else f"measured on {about['machine']}"
    return f"{about['rung']}: {how}"


def draw(traces, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    figure, panels = pyplot.subplots(len(traces), 1, sharex=True, squeeze=False, figsize=(13, 0.8 + 2.1 * len(traces)),
                                     layout="constrained")  # fmt: skip
    end = max(span[1] + span[2] for trace in traces for spans in trace["lanes"].values() for span in spans)
    for (panel,), trace in zip(panels, traces):
        ticks, place = {}, 0.0
        for name, spans in trace["lanes"].items():
            thin = name.endswith((", products", ", engines"))
            height = 0.25 if thin else 0.5
            place -= height + (0.25 if thin else 0.03)
            for category in COLOURS:
                panel.broken_barh([span[1:3] for span in spans if span[0] == category], (place, height),
                                  color=COLOURS[category], edgecolor="white", linewidth=0.3)  # fmt: skip
            if not thin:
                ticks[name] = place + height / 2
                continue
            for _, begin, length, words in spans:
                if length > end / 100 and len(words) < 3:
                    panel.text(begin + length / 2, place + height / 2, words, color="white", fontsize=7, ha="center",
                               va="center_baseline")  # fmt: skip
        panel.set_yticks(list(ticks.values()), list(ticks), fontsize=9)
        panel.set_title(title_of(trace["about"]), loc="left", fontsize=10)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    panels[-1][0].set_xlim(0, end)
    panels[-1][0].set_xlabel(f"{traces[-1]['about']['clock']}; {traces[-1]['about']['problem']}")
    used = {span[0] for trace in traces for spans in trace["lanes"].values() for span in spans}
    kinds = [kind for kind in COLOURS if kind in used]
    panels[0][0].legend(handles=[patches.Patch(color=COLOURS[kind], label=WORDS[kind]) for kind in kinds], ncol=len(kinds),
                         loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)  # fmt: skip
    picture.save(figure, path)


def main(arguments):
    return picture.main_of_many(arguments, __doc__, read_trace, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
