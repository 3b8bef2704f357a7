"""The record of the bytes that the processes of a node read from S3 and wrote to it, as events of the node.

They include the bytes that the agent moved before its attempt began, such as the input files. Bytes after the last
event are missing: its own delivery, and the last minute before a kill of the agent.
"""

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.records.ledger import Moved
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.store.traffic import NAME, Route, traffic

_INTERVAL_S = 60.0


class MovedBytes:
    """Records the bytes of one attempt, from now on in its file. It is used by one thread at a time."""

    def __init__(self, plan: AttemptPlan, spool: SpoolWriter) -> None:
        self._file, self._spool = Path(plan.context.spool_dir, NAME), spool
        self._offset, self._recorded_s = 0, time.monotonic()
        traffic.count_to(self._file)

    def record(self, *, last: bool = False) -> None:
        """Append the bytes since the last event once a minute; with `last`, at once, and count no later bytes here."""
        if last:
            traffic.count_to(None)
        elif time.monotonic() - self._recorded_s < _INTERVAL_S:
            return
        self._recorded_s = time.monotonic()
        sums: dict[Route, tuple[int, int]] = {}
        for line in self._new_lines():
            region, here, read, written = line.split()
            before = sums.get((region, here), (0, 0))
            sums[region, here] = before[0] + int(read), before[1] + int(written)
        for route, (read_bytes, written_bytes) in sums.items():
            moved = Moved(time_s=time.time(), read_bytes=read_bytes, written_bytes=written_bytes)
            names = (None if name == "-" else name for name in route)
            self._spool.append(msgspec.structs.replace(moved, **dict(zip(("region", "here"), names, strict=True))))

    def _new_lines(self) -> list[str]:
        """Return new lines of the file, without a line that is being written."""
        data = b""
        with suppress(FileNotFoundError), open(self._file, "rb") as opened:
            opened.seek(self._offset)
            data = opened.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode().splitlines()
