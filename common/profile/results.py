"""What scripts share: results files of `bench`, peers.py and others, read and written, and the statistics of few samples."""
import json
import math
import pathlib
from statistics import median  # noqa: F401, as files.median in the scripts


class BadResults(Exception):
    """What is wrong with a results file, as a sentence."""


def read_json(path):
    """The object in `path`. Raises BadResults."""
    try:
        results = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadResults(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadResults(f"{path} is not JSON: {error}.") from error
    if not isinstance(results, dict):
        raise BadResults(f"{path} is not a results file: it is no object.")
    return results


def read(path):
    """The results in `path`: an object with a list `rows`. Raises BadResults."""
    results = read_json(path)
    if not isinstance(results.get("rows"), list):
        raise BadResults(f"{path} is not a results file: it has no list called rows.")
    for n, row in enumerate(results["rows"]):
        if not names_itself(row):
            raise BadResults(f"{path} is not a results file of bench: row {n} lacks its name, pass, status or problem.")
    return results


def names_itself(row):
    """Whether a row has what title() and key() ask for."""
    if not isinstance(row, dict) or not isinstance(row.get("problem"), dict):
        return False
    words = [row.get(key) for key in ("stage", "rung", "name", "pass", "status")]
    return all(isinstance(word, str) for word in [*words, row["problem"].get("text"), row.get("l2") or ""])


def write_whole(path, write):
    """write(partial) writes a file beside `path` that then takes its place: it is there whole or not at all. Raises BadResults."""
    partial = pathlib.Path(f"{path}.partial")
    try:
        write(partial)
        partial.replace(path)
    except OSError as error:
        raise BadResults(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        if partial.is_file():
            partial.unlink()


def write_text(path, text):
    """As write_whole()."""
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write(path, results):
    write_text(path, json.dumps(results, indent=1, sort_keys=True) + "\n")


def title(row):
    """"02b split_kv", or "peer cudnn"."""
    return f"{row['stage']}{row['rung']} {row['name']}"


def key(row):
    """What a row is about: the same in two files where it is comparable."""
    return (title(row), row["pass"], row["problem"]["text"], row.get("l2"))


def parse_problem(text):
    """{"B": 16, ..., "dtype": "bf16", "mask": "causal", "packed": False, "text": text} from the words in which results name a
    problem."""
    words = text.split()
    problem = {name: int(value) for name, value in (word.split("=") for word in words[:6])}
    packed = any(word.startswith("seqlens=") for word in words[8:])
    return problem | {"dtype": words[6], "mask": words[7], "packed": packed, "text": text}


def flops(problem, kind):
    """FLOPs of the products over visible pairs of a problem that is not packed: 4 d a pair and query head, backward 2.5 times
    that."""
    queries, keys = problem["Nq"], problem["Nk"]
    if problem["mask"] == "none":
        pairs = queries * keys
    elif problem["mask"] == "causal":  # query i sees keys up to i + keys - queries
        pairs = sum(min(max(i + keys - queries + 1, 0), keys) for i in range(queries))
    else:
        raise ValueError(f"FLOPs of the mask {problem['mask']} are not known here")
    return problem["B"] * problem["Hq"] * pairs * 4 * problem["d"] * (2.5 if kind == "backward" else 1)


def bounds_of_median(samples):
    """(low, high) between which the median of what the samples are drawn from lies, 95 % confident on either side, whatever
    the distribution: order statistics (with 9 samples the second smallest and the second largest, 98 %)."""
    values = sorted(samples)
    below = 0.0
    bound = None
    for k in range(len(values)):
        below += math.comb(len(values), k) / 2 ** len(values)
        if below > 0.05:
            break
        bound = k
    if bound is None:
        raise ValueError("fewer than 5 samples do not bound a median")
    return values[bound], values[-1 - bound]


def probability_of_rank_sum(first, second):
    """Mann-Whitney, one-sided: the probability that samples from one distribution are ranked so that `first` lies as far
    below `second` as it does, or farther. Exact: all ways to choose the ranks are counted; ties count half."""
    # Twice the number of pairs in which `first` is above, so that ties stay whole.
    observed = sum((x > y) * 2 + (x == y) for x in first for y in second)
    m, n = len(first), len(second)
    # ways[i][u]: choices of i of the ranks so far with u pairs (chosen above not chosen).
    ways = [[0] * (m * n + 1) for _ in range(m + 1)]
    ways[0][0] = 1
    for rank in range(m + n):
        for i in range(min(rank + 1, m), 0, -1):
            not_chosen_below = rank - (i - 1)
            if not_chosen_below > n:
                continue
            for u in range(m * n, not_chosen_below - 1, -1):
                ways[i][u] += ways[i - 1][u - not_chosen_below]
    return sum(ways[m][: observed // 2 + 1]) / math.comb(m + n, m)
