#!/usr/bin/env python3
"""Whether results are as good as a baseline.

    gate.py BASELINE RESULTS
    gate.py --write BASELINE RESULTS     what the emulator counted becomes the baseline

Timed results: each rung's share of the roof that the same run measured, so that clocks and machines cancel. Alarm: the median
share is more than 3 % lower, and a rank test (Mann-Whitney, one-sided) gives less than 1 % to samples of one speed looking
so; or the results lack the rung. A row without a roof is named and not compared; peers are not judged. Counted results
(emulator): bytes, FLOPs, exponentials, rescales, barriers must be equal, every one.
Exit: 0 as good, 1 worse or not comparable, 2 bad input.
"""
import json
import math
import sys

import results as files

LOSS = 0.03
PROBABILITY = 0.01


def is_time(value):
    return type(value) in (int, float) and 0 < value < math.inf


def shares(row):
    """Shares of the roof, one a sample. Raises BadResults."""
    roof, times = row["roof"], row.get("ms")
    if not isinstance(times, list) or not times or not all(map(is_time, times)):
        raise files.BadResults(f"{name_of(row)}: its ms is no list of times above 0.")
    if not isinstance(roof, dict) or not is_time(roof.get("ms")):
        raise files.BadResults(f"{name_of(row)}: its roof has no ms above 0.")
    return [roof["ms"] / time for time in times]


def slower(before, after):
    """The loss as a fraction of `before` if it is an alarm, else None; both are samples of speed."""
    loss = 1 - files.median(after) / files.median(before)
    if loss <= LOSS or files.probability_of_rank_sum(after, before) >= PROBABILITY:
        return None
    return loss


def are_counts(counted):
    return isinstance(counted, dict) and all(type(count) is int for count in counted.values())


def counts(results):
    """{measurement: {what: how many}} of all that the emulator counted and that is not 0. Raises BadResults."""
    found = {}
    for row in results["rows"]:
        if row["status"] != "verified":
            continue
        try:
            counted = dict(row["counts"]) | {"flops": int(row["flops"])}
            for tensor, traffic in row["bytes"]["tensors"].items():
                counted |= {f"{tensor} {kind}": size for kind, size in traffic.items()}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            counted = None
        if not are_counts(counted):
            raise files.BadResults(f"{name_of(row)}: its counts, flops or bytes are missing or no whole numbers.")
        found[name_of(row)] = {what: count for what, count in sorted(counted.items()) if count}
    return found


def compare_counts(before, after):
    """As compare()."""
    worse = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after or name not in before:
            worse.append(f"{name}: not in the {'results' if name not in after else 'baseline'}.")
            continue
        old, new = before[name], after[name]
        worse += [f"{name}: {what} {old.get(what, 0)} before, now {new.get(what, 0)}."
                  for what in sorted(old.keys() | new.keys()) if old.get(what, 0) != new.get(what, 0)]  # fmt: skip
    return worse, [], len(before.keys() & after.keys())


def name_of(row):
    return ", ".join(part for part in files.key(row) if part)


def compare_times(before, after):
    """As compare()."""
    rows = {files.key(row): row for row in after["rows"]}
    worse, left_out, compared = [], [], 0
    for old in before["rows"]:
        if old["status"] != "verified" or old["stage"] == "peer":
            continue
        new = rows.get(files.key(old))
        if new is None:
            worse.append(f"{name_of(old)}: not in the results.")
            continue
        if new["status"] != "verified":
            compared += 1
            worse.append(f"{name_of(old)}: verified before, now {new['status']} ({new.get('reason')}).")
            continue
        without = [which for which, row in (("baseline", old), ("results", new)) if row.get("roof") is None]
        if without:
            left_out.append(f"{name_of(old)}: not compared, it has no roof in the {' and the '.join(without)}.")
            continue
        compared += 1
        if loss := slower(shares(old), shares(new)):
            worse.append(f"{name_of(old)}: {100 * files.median(shares(old)):.3g} % of the roof before, now "
                         f"{100 * files.median(shares(new)):.3g} %, a loss of {100 * loss:.1f} %.")  # fmt: skip
    return worse, left_out, compared


def compare(baseline, current):
    """(a sentence for each thing that got worse, one for each that is not compared, how many measurements were). Raises
    BadResults if nothing can be compared."""
    if ("counts" in baseline) != current.get("emulated", False):
        raise files.BadResults("One of the files was counted on the emulator, the other timed on a GPU.")
    if "counts" in baseline:
        return compare_counts(baseline["counts"], counts(current))
    for results, which in ((baseline, "baseline"), (current, "results")):
        if results.get("debug"):
            raise files.BadResults(f"The {which} come from a debug build; build with CMAKE_BUILD_TYPE=Release.")
    return compare_times(baseline, current)


def read_baseline(path):
    """A results file of `bench`, or what write_counts() wrote. Raises BadResults."""
    results = files.read_json(path)
    if "counts" not in results:
        return files.read(path)
    counted = results["counts"]
    if not isinstance(counted, dict) or not all(map(are_counts, counted.values())):
        raise files.BadResults(f"{path} is no baseline: write it anew with gate.py --write.")
    return results


def write_counts(path, results):
    """One measurement a line, so that a change is read in the diff. Raises BadResults if the results make no baseline."""
    if not results.get("emulated", False):
        raise files.BadResults("Times need no --write: a results file of a GPU is a baseline as it is.")
    for row in results["rows"]:
        if row["status"] == "wrong":
            raise files.BadResults(f"{name_of(row)} is wrong ({row.get('reason')}); a baseline is made of right rungs.")
    if not counts(results):
        raise files.BadResults("No rung was verified; an empty baseline would say nothing.")
    lines = [f" {json.dumps(name)}: {json.dumps(counted)}" for name, counted in counts(results).items()]
    files.write_text(path, '{"counts": {\n' + ",\n".join(lines) + "\n}}\n")


def main(arguments):
    write = arguments[:1] == ["--write"]
    if len(arguments) != 2 + write:
        print(__doc__, file=sys.stderr)
        return 2
    baseline, results = arguments[write:]
    try:
        if write:
            write_counts(baseline, files.read(results))
            return 0
        worse, left_out, compared = compare(read_baseline(baseline), files.read(results))
        if not compared and not worse:
            raise files.BadResults(f"The two files have no measurement in common{' that has a roof' if left_out else ''}.")
    except files.BadResults as error:
        print(f"gate.py: {error}", file=sys.stderr)
        return 2
    for sentence in worse + left_out:
        print(sentence)
    print(f"{compared} measurements compared with {baseline}, {len(left_out)} not, {len(worse)} alarms.")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
