#!/usr/bin/env python3
"""Our rungs and PyTorch's attention in one table, measured in step: see common/scripts/compare.sh.

    compare.py BENCH [--peers LIST] [--json FILE] [options of bench]

Both programs prepare, then take turns, round after round: one sample of each rung, one of each peer. A ratio is formed within
each round, so that what the clock does in between cancels. Options of bench: --grid, --problem, --filter, --pass, --longest,
--l2, --repetitions. Peers are measured on the problems and passes of the rungs that these choose.
Exit: 0 printed, 1 a program failed or a rung is wrong, 2 bad arguments, 3 nothing to compare or nothing verified.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import results as files

HERE = pathlib.Path(__file__).parent


class Failed(Exception):
    """A program ended before its first round; it has said why."""


class Program:
    """A program that prints "ready" and waits for a line before each round."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.waits = True
        self.until_ready()
        if not self.waits and self.process.returncode != 0:
            raise Failed(self.process.returncode)

    def until_ready(self):
        """Passes on what the program says until it waits for its next round or ends."""
        for line in self.process.stdout:
            if line.rstrip("\n") == "ready":
                return
            print(line, end="", file=sys.stderr)
        self.waits = False
        self.process.communicate()

    def round(self):
        if self.waits:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            self.until_ready()


def run_in_step(commands):
    """Runs the programs turn by turn, never two at a time; returns their exit statuses. Raises Failed."""
    programs = [Program(command) for command in commands]
    order = list(programs)
    while any(program.waits for program in programs):
        for program in order:
            program.round()
        order.reverse()  # who went last goes first
    return [program.process.returncode for program in programs]


def ratio(ours, theirs):
    """Speed over the peer's, paired by rounds: (median, low, high)."""
    ratios = [b / a for a, b in zip(ours["ms"], theirs["ms"])]
    return (files.median(ratios), *files.bounds_of_median(ratios))


def table(rows):
    """Markdown: one block for each problem and pass, peers first."""
    lines = []
    for problem, kind in dict.fromkeys((row["problem"]["text"], row["pass"]) for row in rows):
        group = [row for row in rows if (row["problem"]["text"], row["pass"]) == (problem, kind) and row.get("ms")]
        peers = [row for row in group if row["stage"] == "peer"]
        if not group:
            continue
        lines += ["", f"{problem}, {kind}, L2 {group[0]['l2']}", ""]
        heads = ["", "ms", "TFLOP/s", "of the roof", *(f"speed / {peer['name']}" for peer in peers)]
        lines.append("| " + " | ".join(heads) + " |")
        lines.append("|---|---|---|---|" + "---|" * len(peers))
        for row in peers + [row for row in group if row["stage"] != "peer"]:
            share = f"{100 * row['roof_fraction']:.3g} %" if row.get("roof_fraction") else "-"
            cells = [files.title(row), f"{row['time_ms']:.4g}", f"{row['tflops']:.4g}", share]
            cells += ["{:.3g} ({:.3g}-{:.3g})".format(*ratio(row, peer)) for peer in peers]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines[1:])


def with_roofs(peers, ours):
    """A peer's share of the roof is that of a rung of ours on the same problem and pass."""
    roofs = {(row["problem"]["text"], row["pass"]): row["roof"] for row in ours if row.get("roof")}
    for row in peers:
        roof = roofs.get((row["problem"]["text"], row["pass"]))
        if roof and row.get("time_ms"):
            row |= {"roof": roof, "roof_fraction": roof["ms"] / row["time_ms"]}
    return peers


def chosen(listing):
    """The passes and problems, as "forward/B=16 ...", of the measurements that `bench --list` printed."""
    return list(dict.fromkeys(name.split("/", 1)[1] for name in listing.splitlines()))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("bench")
    parser.add_argument("--peers")
    parser.add_argument("--json")
    for name in ("--l2", "--repetitions"):  # of both programs
        parser.add_argument(name)
    options, of_bench = parser.parse_known_args(arguments)
    given = vars(options)
    of_both = [word for name in ("l2", "repetitions") if given[name] for word in (f"--{name}", given[name])]
    listing = subprocess.run([options.bench, "--list", *of_both, *of_bench], stdout=subprocess.PIPE, text=True)
    if listing.returncode != 0:
        return listing.returncode
    if not listing.stdout:
        print("compare.py: no rung of this build is chosen: nothing to compare. `bench --list` prints what there is.", file=sys.stderr)
        return 3
    of_peers = ["--peers", options.peers] if options.peers else []
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = (str(pathlib.Path(folder) / name) for name in ("bench.json", "peers.json"))
        try:
            statuses = run_in_step([
                [sys.executable, str(HERE / "peers.py"), *of_peers, *of_both, "--in-step", "--json", theirs, *chosen(listing.stdout)],
                [options.bench, *of_both, *of_bench, "--in-step", "--json", ours],
            ])  # fmt: skip
            results, peers = files.read(ours), files.read(theirs)
        except Failed as failed:
            return failed.args[0]
        except files.BadResults as error:
            print(f"compare.py: {error}", file=sys.stderr)
            return 1
    results["peers"] = {key: value for key, value in peers.items() if key not in ("command", "rows")}
    results["command"] = " ".join(f'"{word}"' if " " in word else word for word in ["compare.sh", *of_peers, *of_both, *of_bench])
    results["rows"] += with_roofs(peers["rows"], results["rows"])
    if options.json:
        files.write(options.json, results)
    print(table(results["rows"]))
    print(f"\n{results['machine']}, {results['peers']['build']}; median of {results['repetitions']} rounds; a speed of 2 is twice "
          "the peer's; in brackets where the median lies with 95 % confidence on either side.")
    wrong = [row for row in results["rows"] if row["status"] == "wrong"]
    for row in wrong:
        print(f"WRONG {files.title(row)}, {row['pass']}, {row['problem']['text']}: {row['reason']}")
    return 1 if wrong or any(status not in (0, 3) for status in statuses) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
