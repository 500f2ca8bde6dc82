#!/usr/bin/env python3
"""Draws what the warpgroups of a CTA are at, one trace below the other.

    timeline.py results/timeline_04b.json results/timeline_04c.json results/timeline_04d.json results/timeline.png

A trace is what stage_04_timeline writes. The thick bar of a warpgroup is what its threads are at, the thin one above it its
products on the tensor cores. Exit: 0 drawn, 2 bad input (said in one sentence).
"""

import sys

import picture
from picture import BadResults, read_json

COLOURS = {"product": "#1f4e8c", "issue": "#a9c1e0", "softmax": "#d9822b", "wait": "#d8d8d8", "copy": "#5b8c3a"}
WORDS = {"product": "product on the tensor cores", "issue": "its instructions, and the wait for it", "softmax": "softmax",
         "wait": "wait for K, V, the turn or a slot", "copy": "copy ordered"}  # fmt: skip
ABOUT = ("rung", "machine", "problem", "clock", "commit")


def read_trace(path):
    """{about, lanes: {name: [(category, begin, length), ...]}}, lanes in the order of their tracks. Raises BadResults."""
    trace = read_json(path)
    try:
        about = {key: str(trace["metadata"][key]) for key in ABOUT} | {"emulated": bool(trace["metadata"]["emulated"])}
        events = trace["traceEvents"]
        named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        lanes = {named[track]: [] for track in sorted(named)}
        for event in events:
            if event["ph"] != "X":
                continue
            begin, length, category = event["ts"], event["dur"], event["cat"]
            if not all(isinstance(number, (int, float)) and number >= 0 for number in (begin, length)):
                raise BadResults(f"{path} has a span from {begin!r} of length {length!r}; both are numbers, 0 or more.")
            if category not in COLOURS:
                raise BadResults(f"{path} has a span of the category {category!r}; there are {', '.join(COLOURS)}.")
            lanes[named[event["tid"]]].append((category, begin, length))
    except (KeyError, TypeError) as error:
        raise BadResults(f"{path} is not a trace of stage_04_timeline: {error!r}.") from error
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
    for (panel,), trace in zip(panels, traces):
        ticks, place = {}, 0.0
        for name, spans in trace["lanes"].items():
            thin = name.endswith("products")
            height = 0.25 if thin else 0.5
            place -= height + (0.25 if thin else 0.03)
            for category in COLOURS:
                panel.broken_barh([span[1:] for span in spans if span[0] == category], (place, height),
                                  color=COLOURS[category], edgecolor="white", linewidth=0.3)  # fmt: skip
            if not thin:
                ticks[name] = place + height / 2
        panel.set_yticks(list(ticks.values()), list(ticks), fontsize=9)
        panel.set_title(title_of(trace["about"]), loc="left", fontsize=10)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    panels[-1][0].set_xlim(left=0)
    panels[-1][0].set_xlabel(traces[-1]["about"]["clock"])
    figure.legend(handles=[patches.Patch(color=COLOURS[kind], label=WORDS[kind]) for kind in COLOURS], ncol=len(COLOURS),
                  loc="outside upper center", frameon=False, fontsize=9)  # fmt: skip
    figure.text(1, 0, traces[0]["about"]["problem"], ha="right", va="bottom", fontsize=8)
    picture.save(figure, path)


def main(arguments):
    return picture.main_of_many(arguments, __doc__, read_trace, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
