"""The logs of NCCL in a node's ranks: read as they grow, recorded as facts, and checked for EFA.

A log is a file `RANK.PROCESS.nccl` in the folder of spools. Without NCCL there is no file, and nothing is recorded.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from m5ws.environment.nccl import efa
from m5ws.environment.nccl.log import NcclLog
from m5ws.records.environment import Declared, Observed
from m5ws.records.ledger import NcclLogged
from m5ws.repository.ledger.spool import SpoolWriter

_INTERVAL_S = 1.0


class NcclLogs:
    """Reads the logs of a node's ranks. `problem`: data goes without EFA, and EFA is wanted."""

    def __init__(
        self,
        folder: Path,
        spool: SpoolWriter,
        declared: Declared,
        observed: Observed,
        system: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._spool, self._observed, self._system, self._clock = folder, spool, observed, system, clock
        self._wanted = efa.wanted_by(declared, observed)
        self._logs: dict[int, NcclLog] = {}
        self._offsets: dict[Path, int] = {}
        self._seen: dict[int, dict[str, str]] = {}
        self._recorded: dict[int, dict[str, str]] = {}
        self._looked_s = -_INTERVAL_S
        self.problem: str | None = None

    def poll(self) -> None:
        """Read the new lines, at most once a second. Facts that did not change for a second are recorded."""
        if self._clock() - self._looked_s < _INTERVAL_S:
            return
        self._looked_s = self._clock()
        self._read()
        self.problem = self.problem or self._find_problem()
        facts = {rank: log.facts for rank, log in self._logs.items()}
        self._record({rank: each for rank, each in facts.items() if each == self._seen.get(rank)})
        self._seen = facts

    def finish(self) -> None:
        """Read and record the rest, after the end of the ranks."""
        self._read()
        self._record({rank: log.facts for rank, log in self._logs.items()})

    def _read(self) -> None:
        """Read the complete new lines. A log that cannot be read has no facts: no run fails because of them."""
        for path in sorted(self._folder.glob("*.nccl")):
            log = self._logs.setdefault(int(path.name.partition(".")[0]), NcclLog())
            with suppress(OSError), path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                lines = file.read().rpartition(b"\n")
                self._offsets[path] = self._offsets.get(path, 0) + len(lines[0]) + len(lines[1])
                log.feed((lines[0] + lines[1]).decode(errors="replace"))

    def _find_problem(self) -> str | None:
        for rank, log in sorted(self._logs.items()) if self._wanted is not None else ():
            if (network := efa.detour(log)) is not None:
                return (
                    f"NCCL of rank {rank} on node {socket.gethostname()} sends through {network}, and {self._wanted} "
                    f"asks for EFA: {efa.cause(log, self._observed, self._system)}"
                )
        return None

    def _record(self, facts: dict[int, dict[str, str]]) -> None:
        for rank, each in facts.items():
            if each and each != self._recorded.get(rank):
                self._spool.append(NcclLogged(time_s=time.time(), rank=rank, facts=each))
                self._recorded[rank] = each
