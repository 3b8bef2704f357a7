"""The last collectives of a rank that may hang, by torch's flight recorder, from outside.

The rank prepares the pipe and the file (training/runtime/nccl.py). The file is a pickle, of which only plain data is
read. Its format is in torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

import io
import os
import pickle
import time
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from m5ws.records.launch import FLIGHT
from m5ws.records.stacks import Collective

_POLLS, _POLL_S = 80, 0.1
"""torch looks at the pipe once a second, and writes 2,000 collectives with their stacks in about a second."""
_MOST_GROUPS = 16
_UNKNOWN = (
    "torch's flight recorder cannot be asked: no process group of NCCL, own settings of the script, or an old torch"
)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[list[object]]:
        if (module, name) == ("torch.jit._pickle", "build_intlist"):
            return list
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def read(folder: Path, rank: int) -> tuple[tuple[Collective, ...], str | None]:
    """Ask a rank for its collectives. Return them, and else the reason without them. Waits for the answer."""
    file = folder / f"{FLIGHT}{rank}-{rank}"
    try:
        # Without a reader, this is an error and no wait.
        with open(os.open(f"{file}.pipe", os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0) as pipe:
            file.unlink(missing_ok=True)
            pipe.write(b"1")
    except OSError:
        # torch writes the file also when a collective times out.
        with suppress(OSError, ValueError):
            return parse(file.read_bytes()), None
        return (), _UNKNOWN
    for _ in range(_POLLS):
        time.sleep(_POLL_S)
        with suppress(OSError, ValueError):  # The file may be half written.
            return parse(file.read_bytes()), None
    return (), "torch's flight recorder did not answer"


def parse(data: bytes) -> tuple[Collective, ...]:
    """Return the collective of each group at which a rank is, without messages between two ranks. Raises ValueError."""
    places = dict[tuple[str, str], dict[str, Any]]()
    try:
        dump = _Plain(io.BytesIO(data)).load()
        for entry in sorted(dump["entries"], key=itemgetter("record_id")):
            group = entry["process_group"]
            if not entry["is_p2p"] and (group not in places or places[group]["state"] == "completed"):
                # Groups of other ranks may have the same name. The end of a gloo collective has no other sign.
                ranks = dump["pg_config"].get(group[0], {}).get("ranks", "")[:60]
                state = "completed" if entry["retired"] else entry["state"]
                places[group] = {"group": " ".join((*group, ranks)), "state": state, "sizes": entry["input_sizes"]}
                places[group]["name"] = entry["profiling_name"].rpartition(":")[2]
                places[group]["number"] = entry["collective_seq_id"]
        ordered = sorted(places.values(), key=lambda each: each["state"] == "completed")
        return msgspec.convert(ordered[:_MOST_GROUPS], tuple[Collective, ...])
    except (pickle.UnpicklingError, msgspec.MsgspecError, LookupError, TypeError, AttributeError, EOFError) as error:
        raise ValueError(str(error)) from error
