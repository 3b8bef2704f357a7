"""One attempt of tests/support/ranks/forked_attempts.py: ranks that are forks of a process which has imported torch.

The parent of the ranks stands where torchrun does: it sends signals to ranks at the given moments.
"""

import json
import os
import socket
import time
from pathlib import Path

import torch.distributed.checkpoint
import torch.distributed.device_mesh
import torch.distributed.fsdp  # every forked process has these imports
import torch.distributed.tensor  # noqa: F401

from m5ws.records.ledger import Step
from m5ws.repository.ledger.ledger import decode_event
from m5ws.repository.ledger.spool import SpoolReader
from m5ws.training import rank
from m5ws.training.backends import shard_writer, torch_backend  # noqa: F401
from m5ws.training.session import session  # noqa: F401

_POLL_S = 0.002
_PATIENCE_S = 120.0


def attempt(context: str, directory: str, ranks: str, signals: str, *command: str) -> None:
    """Run an attempt and print how its ranks ended, and how long it went on after its first step.

    `signals`: a JSON list of [seconds after the first step of this attempt, rank, signal], in the order of time.
    """
    port = _free_port()
    children = [_fork(number, int(ranks), port, context, directory, command) for number in range(int(ranks))]
    began_s = _first_step(Path(directory) / "spool" / "0.spool", children)
    for moment_s, victim, number in json.loads(signals):
        _wait(children, began_s + moment_s)
        os.kill(children[victim], number)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps({"statuses": statuses, "seconds": time.monotonic() - began_s}))


def _fork(number: int, ranks: int, port: int, context: str, directory: str, command: tuple[str, ...]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({name: str(value) for name, value in place.items()})
        own = Path(f"{context}-{number}")
        orders = str(own) if own.exists() else context
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), M5WS_CONTEXT=orders)
        os.chdir(Path(directory) / "work")
        status = rank.main(command)
    finally:
        os._exit(status)


def _first_step(spool: Path, children: list[int]) -> float:
    """Return when rank 0 has done a step; at once if a rank has ended before."""
    reader, end_s = SpoolReader(spool), time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s and not _ended(children):
        if any(isinstance(decode_event(event), Step) for event in reader.read()):
            break
        time.sleep(_POLL_S)
    return time.monotonic()


def _wait(children: list[int], until_s: float) -> None:
    while time.monotonic() < until_s and not _ended(children):
        time.sleep(_POLL_S)


def _ended(children: list[int]) -> bool:
    """Return True if all have ended; they are not reaped here."""
    return all(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None for child in children)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


VERBS = {"attempt": attempt}
