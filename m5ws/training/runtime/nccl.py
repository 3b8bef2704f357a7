"""NCCL's log and torch's flight recorder: the variables by which this rank writes them into files of the node.

The user's own setting wins, in a variable or in a configuration file of NCCL
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
"""

import os
import re
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path

from m5ws.records.launch import FLIGHT

_OWN = ("NCCL_DEBUG", "NCCL_DEBUG_FILE")
_RECORD = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The older name of the file's variable. A script that sets one of both names has its own file."""
_OWN_RECORD = (*_RECORD, "TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_DUMP_DYNAMIC_FILE_NAME")
_SUBSYSTEMS = "INIT,ENV,NET,GRAPH"
"""TUNING is left out: with it, NCCL writes a line for each collective (src/enqueue.cc)."""


def capture(
    folder: Path, rank: int, environment: MutableMapping[str, str] = os.environ, system: Path = Path("/")
) -> dict[str, str | None]:
    """Have NCCL write its log into a folder. Return the fact `nccl.log` if the user directs the log elsewhere."""
    if (own := next(_own(environment, system), None)) is not None:
        return {"nccl.log": f"not recorded: {own}"}
    environment["NCCL_DEBUG"] = "INFO"
    environment["NCCL_DEBUG_FILE"] = str(folder / f"{rank}.%p.nccl")
    environment.setdefault("NCCL_DEBUG_SUBSYS", _SUBSYSTEMS)
    return {}


def record_collectives(folder: Path, rank: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have torch write its record of the newest collectives into a file, when a byte is in a pipe.

    torch records them anyway. A thread of NCCL's process group looks at the pipe once a second, also if Python hangs.
    torch adds the rank of the process's own default group to the names, which a process that a rank starts has too.
    """
    if any(name in environment for name in _OWN_RECORD):
        return
    # torch ends the process if it cannot make its pipe.
    with suppress(OSError):
        probe = folder / f"{FLIGHT}{rank}.probe"
        os.mkfifo(probe)
        probe.unlink()
        environment.update(dict.fromkeys(_RECORD, str(folder / f"{FLIGHT}{rank}-")))


def _own(environment: MutableMapping[str, str], system: Path) -> Iterator[str]:
    """Yield the user's settings of the log."""
    yield from (f"{name} is set" for name in _OWN if name in environment)
    home = environment.get("HOME")
    own = environment.get("NCCL_CONF_FILE") or (f"{home}/.nccl.conf" if home else None)
    for path in (*((Path(own),) if own else ()), system / "etc/nccl.conf"):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        names = (re.match(r"\s*(\w+)\s*=", line) for line in lines)
        yield from (f"{path.name} sets {name[1]}" for name in names if name and name[1] in _OWN)
