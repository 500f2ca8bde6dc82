#!/usr/bin/env python3
"""Writes the figures of the documentation from the results files that it names.

    docs.py            fill every table in README.md, docs/*.md and the stages' READMEs
    docs.py --check    change nothing; exit 1 and name the files that are out of date

A table stands between `<!-- table: FILE [stages=00,01] [pass=forward,backward] -->` and `<!-- end -->`; FILE is a results file
of the ladder or of bench, relative to the repository's root. A figure that the file does not hold is printed as "-". Of a file
of bench the table has a column for each problem; with `show=ceilings` the ceilings of that run; of a file of compare.sh with
`show=peers` a column for each peer, with `show=libraries` what libraries reach of the ceilings. A file of variants
(rows with `change`, `expected` and `ms`: {N or a column's words: [before, after]}) becomes a table of what each change brought; a file of
splits (rows with `splits`) one of what their partial results cost, a file of medians beside
peers (rows with `against`) one of ratios, a file of stage_02_traffic (`points`) one of what each key
tile requests, a file of numerics (`exp2`) one of the errors of 2^x, with `tau=0,8` one of conditional rescaling, a file of sass.py one of the
instructions of each rung's main kernel for bf16 and d = 128.
"""
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "common", "profile"))
import compare  # noqa: E402
from results import title  # noqa: E402

MARKER = re.compile(r"(<!-- table: (\S+)((?: \w+=\S+)*) -->\n).*?(<!-- end -->)", re.S)
NOT_MEASURED = "Not measured yet.\n"


def in_units(value, units):
    """value with three digits and the unit that fits, from [(factor, unit), ...], largest first."""
    if value is None:
        return "-"
    for factor, unit in units:
        if value >= factor:
            return f"{value / factor:.3g} {unit}".strip()
    return f"{value:g}"


def in_bytes(value):
    return in_units(value, [(2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")])


def count(value):
    return in_units(value, [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")])


def total(row, kind):
    """Sum over tensors of requested or distinct bytes; None if any is unknown."""
    tensors = ((row.get("bytes") or {}).get("tensors") or {}).values()
    parts = [tensor.get(f"{kind}_{way}") for tensor in tensors for way in ("read", "written")]
    return None if not parts or any(part is None for part in parts) else sum(parts)


def table_of_ratios(results, words):
    """Rows with `ms`: {N or a column's words: [before, after]} as ratios, behind columns of words, {heading: key}."""
    columns = list(dict.fromkeys(key for row in results["rows"] for key in row["ms"]))
    if all(key.isdigit() for key in columns):
        columns.sort(key=int)
    heads = [*words, *(f"N = {key}" if key.isdigit() else key for key in columns)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in results["rows"]:
        ratios = [f"{row['ms'][key][0] / row['ms'][key][1]:.2f}x" if key in row["ms"] else "-" for key in columns]
        lines.append("| " + " | ".join([*(row[key] for key in words.values()), *ratios]) + " |")
    return "\n".join(lines) + "\n\n"


def variants(results):
    plain = results.get("relative_to", "the plain file in the same run")
    return (table_of_ratios(results, {"change": "change", "expected": "expected"})
            + f"{results['machine']}; {results['problem']}. Speed relative to {plain}.\n")


def medians_against_peers(results):
    return (table_of_ratios(results, {"rung": "rung", "pass": "pass", "problem": "problem", "speed over": "against"})
            + f"{results['machine']}; {results['problem']}; commit {results['commit']}; {results['command']}\n")


def splits(results):
    lines = ["| splits | partial results, counted | by the formula | K and V | written and read, beside K and V |",
             "|" + "---|" * 5]
    for row in results["rows"]:
        share = 200 * row["partial"] / row["keys_and_values"]
        lines.append(f"| {row['splits']} | {in_bytes(row['partial'])} | {in_bytes(row['formula'])} "
                     f"| {in_bytes(row['keys_and_values'])} | {share:.2g} % |")
    lines += ["", f"{results['problem']}; commit {results['commit']}."]
    return "\n".join(lines) + "\n"


def exp2_errors(results):
    lines = ["| 2^x by | largest relative error | rounded to bf16 |", "|---|---|---|"]
    lines += [f"| {way['name']} | {way['relative']:.2e} | {way['bf16']:.2e} |" for way in results["exp2"]]
    lines += ["", f"Every 31st float of [-126, 8]; machine: {results['machine']}; `{results['command']}`, commit {results['commit']}."]
    return "\n".join(lines) + "\n"


def rescaling(results, taus):
    lines = ["| scores | tau | rows that rescale | warps | error of O, bf16 | fp16 | largest W |", "|" + "---|" * 7]
    for row in results["rescaling"]:
        if f"{row['tau']:g}" in taus:
            lines.append(f"| {row['law']} | {row['tau']:g} | {100 * row['rows']:.3g} % | {100 * row['warps']:.3g} % "
                         f"| {row['bf16']:.1e} | {row['fp16']:.1e} | {row['largest_weight']:g} |")
    lines += ["", f"{results['problem']}; machine: {results['machine']}; `{results['command']}`, commit {results['commit']}."]
    return "\n".join(lines) + "\n"


def rate(measured):
    """A ceiling or what a library reaches, in a second."""
    tera = measured["per_second"] / 1e12
    return (f"{tera:.3g}" if tera < 100 else f"{tera:.0f}") + " T" + measured["unit"].split("/")[0]


def key_tiles(results):
    lines = ["| Bc | M | elements requested |", "|---|---|---|"]
    lines += [f"| {point['Bc']} | {point['M']} | {point['elements']} |" for point in results["points"]]
    lines += ["", f"emulated; {results['problem']}; `{results['command']}`, commit {results['commit']}; counted."]
    return "\n".join(lines) + "\n"


def ceilings(results):
    lines = ["| ceiling | a second | source |", "|---|---|---|"]
    for name, ceiling in results["ceilings"].items():
        lines.append(f"| {name} | {rate(ceiling)} | {ceiling['source']} |")
    return "\n".join(lines + ["", origin(results)]) + "\n"


def machine(results):
    return results["machine"] + (f" at up to {results['clock_mhz']} MHz" if results.get("clock_mhz") else "")


def origin(results):
    """Where the figures come from, in a sentence. Of a command's many problems, which the table lists, the first."""
    peers = f"; {results['peers']['build']}" if results.get("peers") else ""
    command = re.sub(r'( --problem "[^"]*")(?: --problem "[^"]*")+', r"\1 --problem ...", results["command"])
    return f"{machine(results)}{peers}; `{command}`, commit {results['commit']}."


def libraries(results):
    reached = results["peers"].get("libraries")
    if not reached:
        return NOT_MEASURED
    lines = ["| ceiling | library | a second | of the ceiling |", "|---|---|---|---|"]
    for name, library in reached.items():
        share = library["per_second"] / results["ceilings"][name]["per_second"]
        lines.append(f"| {name} | {library['what']} | {rate(library)} | {100 * share:.0f} % |")
    return "\n".join(lines + ["", origin(results)]) + "\n"


def short(texts):
    """The words that all problems share, and what is left of each."""
    shared = [word for word in texts[0].split() if all(word in text.split() for text in texts)]
    return " ".join(shared), [" ".join(word for word in text.split() if word not in shared) for text in texts]


def is_decode(rows):
    """Whether the rows are of decoding alone, whose speed is in bytes."""
    return {row["pass"] for row in rows} == {"decode"}


def speed(row, decode):
    """Speed and the share of the roof in one cell."""
    if row.get("time_ms") is None:
        return "-"
    share = 100 * row.get("roof_fraction", 0)
    share = f" ({share:.{2 if share < 99.5 else 3}g} %)" if share else ""
    return (f"{row['bytes_per_s'] / 1e12:.3g}" if decode else f"{row['tflops']:.3g}") + share


def speeds(results, rows):
    """Speed and the share of the roof, a column for each problem; words that all problems share stand below."""
    rows = [row for row in rows if row["stage"] != "peer"]
    texts = list(dict.fromkeys(row["problem"]["text"] for row in rows))
    shared, heads = short(texts)
    decode = is_decode(rows)
    unit = "TB/s" if decode else "TFLOP/s"
    lines = ["| rung | pass | " + " | ".join(head or unit for head in heads) + " |", "|---|---|" + "---|" * len(texts)]
    cells = {(title(row), row["pass"], row["problem"]["text"]): row for row in rows}
    for name, kind in dict.fromkeys(key[:2] for key in cells):
        figures = [speed(cells.get((name, kind, text), {}), decode) for text in texts]
        lines.append(f"| {name} | {kind} | " + " | ".join(figures) + " |")
    l2 = "/".join(sorted({row["l2"] for row in rows}))
    lines += ["", f"{unit}, and how much of the roof that is; {shared}; L2 {l2}; {origin(results)}"]
    return "\n".join(lines) + "\n"


def against_peers(results, rows):
    """Our rungs' speed, and over each peer's on the same problem, with the bounds of the ratio."""
    peers = {(row["name"], row["pass"], row["problem"]["text"]): row for row in rows if row["stage"] == "peer"}
    rows = [row for row in rows if row["stage"] != "peer"]
    names = list(dict.fromkeys(key[0] for key in peers))
    texts = list(dict.fromkeys(row["problem"]["text"] for row in rows))
    shared, heads = short(texts)
    decode = is_decode(rows)
    unit = "TB/s" if decode else "TFLOP/s"
    lines = [f"| problem | rung | pass | {unit} | " + " | ".join(f"/ {name}" for name in names) + " |", "|" + "---|" * (4 + len(names))]
    for text, head in zip(texts, heads):
        for row in (row for row in rows if row["problem"]["text"] == text):
            ratios = []
            for name in names:
                peer = peers.get((name, row["pass"], text))
                ratios.append("{:.2f} ({:.2f}-{:.2f})".format(*compare.ratio(row, peer)) if peer else "-")
            lines.append(f"| {head} | {title(row)} | {row['pass']} | {speed(row, decode)} | " + " | ".join(ratios) + " |")
    lines += ["", f"{unit}, how much of the roof that is, and the speed over each peer's (median of {results['repetitions']} rounds, in brackets "
              f"its bounds); {shared}; L2 {rows[0]['l2']}; {origin(results)}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def instructions(results, stages):
    """What the main kernels of the stages' rungs are made of, for bf16 and d = 128 where it is chosen; what none has is left out."""
    main = re.compile(r"stage(\d\d::\w+)::(?:forward|backward)<__nv_bfloat16(?:, 128\b|>)")
    rows = [(match[1], row) for row in results["rows"] if (match := main.match(row["kernel"])) and match[1][:2] in stages]
    names = [name for name in rows[0][1]["counts"] if any(row["counts"][name] for _, row in rows)]
    lines = ["| rung | instructions | " + " | ".join(names) + " |", "|" + "---|" * (2 + len(names))]
    for rung, row in rows:
        counts = [str(row["counts"][name]) for name in names]
        lines.append(f"| {rung.replace('::', '').replace('_', ' ')} | {row['instructions']} | " + " | ".join(counts) + " |")
    architectures = ", ".join(dict.fromkeys(row["architecture"] for _, row in rows))
    lines += ["", f"bf16, d = 128 where there is a choice; {results['compiler']} for {architectures}; `{results['command']}`, commit {results['commit']}."]
    return "\n".join(lines) + "\n"


def table(results, options):
    if "points" in results:
        return key_tiles(results)
    if "exp2" in results:
        return rescaling(results, options["tau"].split(",")) if "tau" in options else exp2_errors(results)
    if options.get("show") in ("ceilings", "libraries"):
        return {"ceilings": ceilings, "libraries": libraries}[options["show"]](results)
    if "compiler" in results:
        return instructions(results, options["stages"].split(","))
    if "splits" in results["rows"][0]:
        return splits(results)
    if "against" in results["rows"][0]:
        return medians_against_peers(results)
    if "change" in results["rows"][0]:
        return variants(results)
    rows = [row for row in results["rows"] if row["status"] == "verified"]
    if "stages" in options:
        rows = [row for row in rows if row["stage"] in ("peer", *options["stages"].split(","))]
    if "pass" in options:
        rows = [row for row in rows if row["pass"] in options["pass"].split(",")]
    if all(row["stage"] == "peer" for row in rows):
        return NOT_MEASURED
    if "ceilings" in results:
        return (against_peers if options.get("show") == "peers" else speeds)(results, rows)
    timed = any(row.get("time_ms") is not None for row in rows)
    polynomials = ["polynomials"] if any(row.get("polynomials") for row in rows) else []
    head = ["rung", "pass"] + (["ms", "TFLOP/s"] if timed else []) + ["requested", "distinct", "exponentials"] + polynomials
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [title(row), row["pass"]]
        if timed:
            cells += [f"{row['time_ms']:.4g}", f"{row['tflops']:.3g}"] if row.get("time_ms") is not None else ["-", "-"]
        cells += [in_bytes(total(row, "requested")), in_bytes(total(row, "distinct")), count(row.get("exps"))]
        cells += [count(row.get(key)) for key in polynomials]
        lines.append("| " + " | ".join(cells) + " |")
    source = {row["bytes"]["source"] for row in rows if row.get("bytes")}
    lines.append("")
    lines.append(f"{machine(results)}; {results['problem']['text']}; `{results['command']}`, commit "
                 f"{results['commit']}; bytes and exponentials {' or '.join(sorted(source)) or 'unknown'}.")
    return "\n".join(lines) + "\n"


def filled(text):
    def fill(match):
        with open(os.path.join(ROOT, match[2]), encoding="utf-8") as file:
            results = json.load(file)
        return match[1] + table(results, dict(pair.split("=") for pair in match[3].split())) + match[4]

    return MARKER.sub(fill, text)


def documents():
    yield os.path.join(ROOT, "README.md")
    for folder in sorted(os.listdir(ROOT)):
        if folder == "docs" or re.match(r"\d\d_", folder):
            for name in sorted(os.listdir(os.path.join(ROOT, folder))):
                if name.endswith(".md"):
                    yield os.path.join(ROOT, folder, name)


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(f"docs.py: {' '.join(arguments)}: the only option is --check", file=sys.stderr)
        return 2
    stale = []
    for path in documents():
        with open(path, encoding="utf-8") as file:
            before = file.read()
        try:
            after = filled(before)
        except (OSError, ValueError, KeyError) as error:
            print(f"docs.py: {os.path.relpath(path, ROOT)}: no table from its results file: {error!r}", file=sys.stderr)
            return 1
        if after == before:
            continue
        stale.append(os.path.relpath(path, ROOT))
        if not arguments:
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                file.write(after)
            os.replace(path + ".tmp", path)
    if arguments and stale:
        print("docs.py: figures differ from their results files in " + ", ".join(stale) +
              "; run common/scripts/docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
