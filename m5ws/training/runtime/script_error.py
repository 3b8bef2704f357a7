"""The error that ended a rank's script, as a record.

An error of a loader's worker is described by its own type, text and place.
"""

import re
import traceback
from pathlib import Path

from m5ws import secret_scan
from m5ws.records.failure import Failure

_CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal Traceback ")
"""Begin of an error's text that torch raises again in the process of the loader (torch 2.13, `torch/_utils.py`)."""
_LAST_FRAME = re.compile(
    r'.*^  File "([^"\n]+)", line (\d+), in [^\n]*\n(?: [^\n]*\n)*(\S.*)', re.DOTALL | re.MULTILINE
)


def find_failure(error: BaseException) -> Failure:
    """Return the type, the text and the place of an error, without secrets."""
    text = str(error).rstrip()
    if (caught := _CAUGHT.match(text)) and (last := _LAST_FRAME.match(text)):
        file, line, own = last.groups()
        kind, _, text = secret_scan.masked(own).partition(": ")
        return Failure(type=kind, text=text, place=f"{Path(file).name}:{line}", worker=int(caught[1]))
    return Failure(type=type(error).__name__, text=secret_scan.masked(text), place=_place(error))


def _place(error: BaseException) -> str | None:
    """Return the innermost frame of an error, as FILE:LINE; one of m5ws or of an import only without others."""
    every = traceback.extract_tb(error.__traceback__)
    own = str(Path(secret_scan.__file__).parent)
    frames = [frame for frame in every if not frame.filename.startswith((own, "<frozen importlib"))] or every
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
