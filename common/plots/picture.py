"""What the plots share: one results file in, one picture out, and every fault said in one sentence."""

import json
import os
import pathlib
import sys
import tempfile


class BadInput(Exception):
    """What is wrong with the results file, as a sentence."""


def read_json(path):
    """The document at `path`. Raises BadInput."""
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}.") from error


def save(figure, path):
    """Writes the figure beside its place and moves it there, so that a picture is whole or not there."""
    target = pathlib.Path(path)
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=target.suffix or ".png", delete=False) as temporary:
        pass
    try:
        figure.savefig(temporary.name, dpi=150)
        os.chmod(temporary.name, 0o644)
        os.replace(temporary.name, target)
    except BaseException:
        os.unlink(temporary.name)
        raise


def main(arguments, usage, read_results, draw):
    """draw(read_results(RESULTS), PICTURE) for the two arguments; returns the exit status: 0 drawn, 2 bad input."""
    if len(arguments) != 2:
        print(usage, file=sys.stderr)
        return 2
    try:
        draw(read_results(arguments[0]), arguments[1])
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    except ImportError:
        print("The picture needs matplotlib (Debian, Ubuntu: apt-get install python3-matplotlib).", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{arguments[1]} cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    return 0
