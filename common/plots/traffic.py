#!/usr/bin/env python3
"""Draws what tiles save: elements that 02a requests against the on-chip memory M for which its key tile was chosen.

    traffic.py results/traffic.json results/traffic.png

The results file is what stage_02_traffic writes. Exit: 0 drawn, 2 bad input (said in one sentence).
"""

import sys

import picture
from picture import BadResults, read_json

COUNTED = "#1f4e8c"
THEORY = "#8a8a8a"
STORED = "#b3261e"


def read_results(path):
    results = read_json(path)
    try:
        if not results["points"]:
            raise BadResults(f"{path} has no points.")
        for number in [results["N"], results["d"]] + [p[key] for p in results["points"] for key in ("M", "elements")]:
            if not isinstance(number, int) or number <= 0:
                raise BadResults(f"{path} has {number!r} where a positive whole number belongs.")
    except (KeyError, TypeError) as error:
        raise BadResults(f"{path} is not a results file of stage_02_traffic: {error}.") from error
    return results


def theory(N, d, M):
    """2 N d + (N / Bc) (3 N d + 4 N) with Bc = M / 4d."""
    return 2 * N * d + 4 * d * N / M * (3 * N * d + 4 * N)


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    N, d, points = results["N"], results["d"], results["points"]
    sizes = [point["M"] for point in points]
    figure, panel = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    panel.plot(sizes, [theory(N, d, M) for M in sizes], color=THEORY, label="2Nd + (N/Bc)(3Nd + 4N)")
    panel.plot(sizes, [point["elements"] for point in points], "o", color=COUNTED, label="02a, counted")
    panel.axhline(4 * N * N + 4 * N * d, color=STORED, linestyle="--", label="S and P stored: 4N² + 4Nd")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xlabel("M = 4 Bc d, on-chip elements")
    panel.set_ylabel("elements requested of global memory")
    panel.set_title(results.get("problem", ""), fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    picture.save(figure, path)


def main(arguments):
    return picture.main(arguments, __doc__, read_results, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
