"""All checks of one node, one after another: they measure, and would disturb each other.

A check that fails is repeated once, and is a warning if it passes then. The arithmetic repeats itself, and
fails for a single wrong bit.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from m5ws import secret_gate
from m5ws.engines.interface import NodeOutput
from m5ws.errors import M5Error, MissingExtra
from m5ws.preflight import arithmetic, gpus, machine, needs
from m5ws.preflight.needs import Needs, Place
from m5ws.progress import Progress, report
from m5ws.records.check import Check
from m5ws.records.run import Run
from m5ws.repository.repository import Repository

_log = logging.getLogger(__name__)
_SECONDS = 1.0
"""Time of the arithmetic on the processors of each rank, and on each GPU."""
_WRITTEN_BYTES = 32 * 2**20
_REMEDY = "Correct the cause that the message names."


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of a node, by its host name."""

    node: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class Unfit(M5Error):
    """A node failed a check before step 1."""

    exit_code = 1
    hint = "Drain the node, or correct the cause. `m5ws preflight` repeats the checks."

    def __init__(self, node: str, failed: Sequence[Check]) -> None:
        faults = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        super().__init__(f"node {node} failed its checks: {faults}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine to check, and the folders that a run writes to. Ranks start with the `environment`."""

    repo: Repository
    home: Path
    work_root: Path
    store_dir: Path | None
    cache_dir: Path | None
    cache_limit_bytes: int
    environment: Mapping[str, str]

    def check(self, run: Run, nodes: int, progress: Progress | None) -> None:
        """Check this machine before a run. Raises Unfit for a check that failed; other problems are logged."""
        try:
            examined = examine(self, needs.find(self.repo, run, nodes), progress)
        except (M5Error, OSError) as error:
            _log.warning("this node could not be checked before run %s: %s", run.id, error)
            return
        for each in examined.checks:
            if each.state in ("warning", "missing", "broken"):
                _log.warning("node %s: %s: %s", examined.node, each.name, each.detail)
        if failed := [each for each in examined.checks if each.state == "failed"]:
            raise Unfit(examined.node, failed)

    def places(self, needed: Needs) -> Sequence[Place]:
        """Return the folders with the bytes that a run needs there."""
        cached_bytes = min(needed.checkpoint_bytes + needed.files_bytes, self.cache_limit_bytes)
        logs = [each for each in (self.home / "runs" / (needed.run or "-")).glob("*/logs/*") if each.is_file()]
        uses = (
            ("work and outputs", self.work_root, needed.files_bytes + needed.outputs_bytes, needed.files),
            ("the store", self.store_dir, needed.checkpoint_bytes + needed.outputs_bytes, 0),
            ("copies of the store", self.cache_dir, cached_bytes, 0),
            ("logs", self.home, sum(each.stat().st_size for each in logs), 0),
        )
        return [Place(use=use, path=path, size_bytes=size, files=files) for use, path, size, files in uses if path]


def examine(node: Machine, needed: Needs, progress: Progress | None = None) -> NodeReport:
    """Return the checks of this machine. Results of its arithmetic are published."""
    ranks = -(-needed.ranks // needed.nodes)
    quick: dict[str, Callable[[str], Check]] = {
        "disk": partial(machine.check_disk, places=node.places(needed)),
        "shared memory": partial(machine.check_shared_memory, ranks=ranks),
        "memory": partial(machine.check_memory, needs=needed),
        "clock": partial(machine.check_clock, store=node.repo.store),
        "open files": partial(machine.check_open_files, ranks=ranks),
        "gpus": gpus.check_gpus,
        "efa": partial(machine.check_efa, needs=needed),
    }
    checks = list[Check]()
    for name, probe in quick.items():
        report(progress, f"checking {name}")
        checks.append(_repeated(name, probe))
    report(progress, "computing known results")
    checks += _compute(node)
    return NodeReport(node=socket.gethostname(), checks=tuple(map(secret_gate.masked, checks)))


def _repeated(name: str, probe: Callable[[str], Check]) -> Check:
    """Return a check, repeated if it failed. A check that failed once only is a warning."""
    first = _guarded(name, probe)
    second = _guarded(name, probe) if first.state == "failed" else first
    if first.state != "failed" or not second.passed:
        return second
    detail = f"{second.detail}; passed when repeated, after: {first.detail}"
    return Check(name, "warning", detail, first.remedy)


def _guarded(name: str, probe: Callable[[str], Check]) -> Check:
    try:
        return probe(name)
    except (M5Error, OSError) as error:
        hint = error.hint if isinstance(error, M5Error) else ""
        return Check(name, "missing" if isinstance(error, MissingExtra) else "broken", str(error), hint or _REMEDY)


def _compute(node: Machine) -> Sequence[Check]:
    """Return the checks of computed results. Without a result, the one check is the error."""
    judged = list[Check]()

    def compute(_: str) -> Check:
        result = arithmetic.measure(sys.executable, node.environment, _SECONDS)
        if (rate := _write_rate(node.work_root)) is not None:
            result = msgspec.structs.replace(result, rates={**result.rates, "disk": rate})
        judged.extend(arithmetic.judge(node.repo, result))
        return judged.pop(0)

    return (_guarded("arithmetic", compute), *judged)


def _write_rate(work_root: Path) -> int | None:
    """Return the bytes a second that the disk of the work directories takes, with a sync; None if it is full."""
    folder = next(outer for outer in (work_root, *work_root.parents) if outer.exists())
    path, data = folder / f".m5ws-preflight-{os.getpid()}", os.urandom(_WRITTEN_BYTES)
    try:
        begin_s = time.monotonic()
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return int(_WRITTEN_BYTES / (time.monotonic() - begin_s))
    except OSError:
        return None
    finally:
        with suppress(OSError):
            path.unlink()


def read_report(printed: NodeOutput) -> NodeReport:
    """Return the checks that a node printed. A node without a result has the one check `answer`, which failed."""
    try:
        document = msgspec.json.decode(printed.text[printed.text.index("{") :])
        (found,) = msgspec.convert(document["nodes"], tuple[NodeReport, ...])
    except (ValueError, LookupError, msgspec.MsgspecError) as error:
        problem = printed.problem or f"no result: {printed.text.strip() or error}"
        remedy = "Correct the error on this node, or leave the node out of the cluster."
        return NodeReport(node=printed.node, checks=(Check("answer", "failed", problem, remedy),))
    return msgspec.structs.replace(found, node=f"{printed.node} ({found.node})")
