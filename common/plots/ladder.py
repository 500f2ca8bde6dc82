#!/usr/bin/env python3
"""Draws one run of the ladder: what every rung moves, and how fast it is where it was timed.

    ladder.py results/ladder.json results/ladder.png

Exit: 0 drawn, 2 bad input (said in one sentence).
"""

import sys

import picture
from picture import BadResults, read_json

GREY = "#8a8a8a"
REQUESTED = "#9db8d9"
DISTINCT = "#1f4e8c"
SPEED = "#2f7d4f"
WRONG = "#b3261e"
LABEL = {"textcoords": "offset points", "va": "center", "fontsize": 8}


def read_results(path):
    results = read_json(path)
    if not isinstance(results.get("rows"), list):
        raise BadResults(f"{path} is not a results file of the ladder: it has no list called rows.")
    if not results["rows"]:
        raise BadResults(f"{path} has no rows: nothing was run.")
    for number, row in enumerate(results["rows"]):
        missing = [key for key in ("stage", "rung", "pass", "status") if not isinstance(row, dict) or key not in row]
        if missing:
            raise BadResults(f"Row {number} of {path} has no {missing[0]}.")
        figures = [size for tensor in tensors_of(row) for size in tensor.values()]
        for figure in figures + [row.get("tflops"), row.get("ceiling_fraction")]:
            if figure is not None and not isinstance(figure, (int, float)):
                raise BadResults(f"Row {number} of {path} has {figure!r} where a number belongs.")
    return results


def tensors_of(row):
    return ((row.get("bytes") or {}).get("tensors") or {}).values()


def total_bytes(row, kind):
    """Bytes read and written over all tensors; kind is requested or distinct. None where they are not known."""
    sizes = [tensor.get(f"{kind}_{way}") for tensor in tensors_of(row) for way in ("read", "written")]
    if row["status"] == "skipped" or not sizes or None in sizes:
        return None
    return sum(sizes)


def source_of_bytes(rows):
    sources = {source for row in rows if (source := (row.get("bytes") or {}).get("source"))}
    return ", ".join(sorted(sources))


def in_words(size):
    """12345678 -> 11.8 MiB"""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.3g} {unit}" if size < 1000 or unit == "B" else f"{size:.0f} {unit}"
        size /= 1024


def title_of(results):
    machine = results.get("machine", "unknown machine")
    if isinstance(machine, dict):
        machine = machine.get("name", "unknown machine")
    emulated = "emulat" in f"{machine} {results.get('build', '')}".lower()
    how = "emulated" if emulated else "measured"
    if how not in str(machine):
        machine = f"{machine}, {how}"
    return f"Attention, rung by rung: {machine}\n{results.get('problem', {}).get('text', 'unknown problem')}"


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    rows = results["rows"]
    places = range(len(rows))
    timed = any(row.get("tflops") for row in rows)
    figure, panels = pyplot.subplots(
        1, 2 if timed else 1, sharey=True, squeeze=False, figsize=(13 if timed else 10, 1.9 + 0.62 * len(rows)),
        gridspec_kw={"width_ratios": [3, 2] if timed else [1]}, layout="constrained")  # fmt: skip
    figure.suptitle(title_of(results), fontsize=11, wrap=True)

    memory = panels[0][0]
    for kind, colour, offset in (("requested", REQUESTED, -0.2), ("distinct", DISTINCT, 0.2)):
        sizes = [total_bytes(row, kind) for row in rows]
        memory.barh([place + offset for place in places], [size or 0 for size in sizes], 0.38, color=colour, label=kind)
        for place, size in zip(places, sizes):
            if size:
                memory.annotate(in_words(size), (size, place + offset), (4, 0), **LABEL)
    sizes = [size for row in rows for kind in ("requested", "distinct") if (size := total_bytes(row, kind))]
    left = min(sizes) / 4 if sizes else 0
    if sizes:
        memory.set_xscale("log", base=2)
        memory.set_xlim(left, max(sizes) * 8)  # room for the labels
        memory.xaxis.set_major_formatter(ticker.FuncFormatter(lambda size, _: in_words(size)))
        memory.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=8))
        memory.xaxis.set_minor_locator(ticker.NullLocator())
        memory.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, frameon=False, fontsize=9)
    else:
        memory.set_xticks([])
    source = source_of_bytes(rows)
    memory.set_xlabel(f"global memory, reads and writes{f' ({source})' if source else ''}")

    for place, row in zip(places, rows):
        if row["status"] != "verified":
            reason = f"{row['status']}{': ' + row['reason'] if row.get('reason') else ''}"
            shown = reason if len(reason) <= 90 else reason[:87] + "..."
            colour = WRONG if row["status"] == "wrong" else GREY
            distinct = total_bytes(row, "distinct")
            start, gap = ((distinct, place + 0.2), 56) if distinct else ((left, place), 6)  # after the bar's own label
            memory.annotate(shown, start, (gap, 0), color=colour, **LABEL)

    names = [f"{row['stage']}{row['rung']} {row['pass']}\n{row.get('name', '')}" for row in rows]
    memory.set_yticks(list(places), names, fontsize=9)
    for label, row in zip(memory.get_yticklabels(), rows):
        label.set_color({"wrong": WRONG, "skipped": GREY}.get(row["status"], "black"))
    memory.set_ylim(len(rows) - 0.4, -0.6)  # first rung on top

    if timed:
        speed = panels[0][1]
        speed.barh(list(places), [row.get("tflops") or 0 for row in rows], 0.6, color=SPEED)
        for place, row in zip(places, rows):
            if row.get("tflops"):
                share = f" ({row['ceiling_fraction']:.1%} of the ceiling)" if row.get("ceiling_fraction") else ""
                speed.annotate(f"{row['tflops']:.3g}{share}", (row["tflops"], place), (4, 0), **LABEL)
        speed.set_xlim(0, 1.6 * max(row.get("tflops") or 0 for row in rows))
        speed.set_xlabel("TFLOP/s")
    for panel in panels[0]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(axis="y", length=0)

    picture.save(figure, path)


def main(arguments):
    return picture.main(arguments, __doc__, read_results, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
