"""What the plots share: results files in, one picture out, and every fault said in one sentence."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "profile"))
from results import BadResults, read_json, write_whole  # noqa: E402, F401: read_json is for the plots


def save(figure, path):
    """Writes the picture; its kind is that of the name, png without one. Raises BadResults."""
    kind = pathlib.Path(path).suffix[1:] or "png"
    write_whole(path, lambda partial: figure.savefig(partial, dpi=150, format=kind))


def main(arguments, usage, read_results, draw):
    """draw(read_results(RESULTS), PICTURE) for the two arguments; returns the exit status: 0 drawn, 2 bad input."""
    return main_of_many(arguments if len(arguments) == 2 else [], usage, read_results,
                        lambda results, path: draw(*results, path))  # fmt: skip


def main_of_many(arguments, usage, read_results, draw):
    """draw([read_results(RESULTS), ...], PICTURE) for RESULTS ... PICTURE; returns the exit status."""
    if len(arguments) < 2:
        print(usage, file=sys.stderr)
        return 2
    try:
        draw([read_results(path) for path in arguments[:-1]], arguments[-1])
    except BadResults as error:
        print(error, file=sys.stderr)
        return 2
    except ImportError:
        print("The picture needs matplotlib (Debian, Ubuntu: apt-get install python3-matplotlib).", file=sys.stderr)
        return 2
    return 0
