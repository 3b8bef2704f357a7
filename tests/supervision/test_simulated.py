"""Simulated failures of many nodes: the class, the rank and the node of the first failure are found.

The lines are the output of real failures. Simulated are the number of ranks, clocks that differ by up to 5 s, logs that
are missing, ranks that repeat the failure later, and ranks that are killed without a record.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.failure import Failure
from m5ws.records.ledger import NODE, AttemptStarted, Event, NodeStarted, RankEnded, Step
from m5ws.records.store import Format
from m5ws.repository.ledger.ledger import ChainWriter
from m5ws.repository.repository import Repository
from m5ws.supervision import cases, causes, diagnosis
from tests.supervision.scripts import plain_failures
from tests.supervision.test_real_failures import failure_logs
from tests.support.campaigns import soak_page
from tests.support.stores.memory_store import MemoryStore

_DATA = Path(__file__).parents[1] / "data" / "causes"
_RUN = "7c1d0a9b8e2f"
_SKEW_S = 5.0
_STEPS = 20
_HEADER = (
    "| nodes | ranks a node | failures | class % | rank % | rank without correction % | node % | named % |",
    "|---|---|---|---|---|---|---|---|",
)
_EXCEPTION = re.compile(r"([\w.]+): (.*)")


class _Simulated:
    """A failed attempt: the records of all nodes in a store, and the logs of ranks in a folder."""

    def __init__(self, seed: int, nodes: int, ranks: int, kind: str, lines: list[str], folder: Path) -> None:
        chance = random.Random(seed)
        self.kind, self.rank = kind, chance.randrange(nodes * ranks)
        self.node = self.rank // ranks
        self.repo = Repository.create(MemoryStore(), Format())
        self._effect = msgspec.json.decode((_DATA / "gloo-connection.json").read_bytes(), type=cases.Case).logs["1"]
        observed = self.repo.objects.put_record(Observed())
        ahead_s = [chance.uniform(-_SKEW_S, _SKEW_S) for _ in range(nodes)]
        repeats, missing = chance.uniform(0, 0.1), chance.uniform(0, 0.2)
        folder.mkdir()
        for node in range(nodes):
            start: list[Event] = [NodeStarted(node=node, host=f"n{node}", observed=observed)]
            if node == 0:
                start.insert(0, AttemptStarted(attempt=1, host="n0", nodes=nodes))
            events: dict[str, list[Event]] = {NODE: start}
            for rank in range(node * ranks, (node + 1) * ranks):
                steps = [Step(time_s=10.0 * step + chance.uniform(0, 0.02), step=step, quantities={})
                         for step in range(1, _STEPS + 1)]  # fmt: skip
                output, end = self._end(chance, rank, lines, repeats)
                events[str(rank)] = [*steps, *([end] if end is not None else [])]
                if output and chance.random() >= missing:
                    shown = [f"step {step}: loss {1 / step:.4f}" for step in range(1, 30)]
                    (folder / f"rank-{rank}.log").write_text("\n".join([*shown, *output]) + "\n")
            ChainWriter(self.repo, _RUN, 1, node, is_new=True).append(
                {origin: [_encoded(event, ahead_s[node]) for event in some] for origin, some in events.items()}
            )

    def _end(
        self, chance: random.Random, rank: int, lines: list[str], repeats: float
    ) -> tuple[list[str], RankEnded | None]:
        """Return the last lines of a rank and the record of its end: the failure, at first or later, or an effect."""
        began_s = 10.0 * _STEPS + 1.0
        if rank == self.rank:
            return lines, _ended(rank, lines, began_s)
        if chance.random() < repeats:
            return lines, _ended(rank, lines, began_s + chance.uniform(0.1, 2.0))
        if chance.random() < 0.3:
            return [], None
        effect = list(self._effect)
        return effect, _ended(rank, effect, began_s + chance.uniform(0.5, 30.0))


def _ended(rank: int, lines: list[str], time_s: float) -> RankEnded:
    match = _EXCEPTION.fullmatch(lines[-1].removeprefix("[rank1]: "))
    failure = Failure(type=match[1], text=match[2]) if match is not None else Failure(signal=6)
    return RankEnded(time_s=time_s, rank=rank, failure=failure)


def _encoded(event: Event, ahead_s: float) -> bytes:
    return codec.encode(msgspec.structs.replace(event, time_s=event.time_s + ahead_s))


def _judge(made: _Simulated, folder: Path) -> Iterator[str]:
    """Yield the facts that were found."""
    evidence = diagnosis.collect(made.repo, _RUN, 1, folder)
    cause = evidence.find(causes.builtin())
    raw = {str(rank): ended.time_s for rank, ended in evidence.recorded.failures.items()}
    skewed = msgspec.structs.replace(evidence, recorded=msgspec.structs.replace(evidence.recorded, ended_s=raw))
    uncorrected = skewed.find(causes.builtin())
    if uncorrected is not None and uncorrected.rank == str(made.rank):
        yield "uncorrected"
    if cause is None or cause.level == "cascade":
        return
    yield "named"
    if cause.kind == made.kind:
        yield "kind"
    if cause.rank == str(made.rank):
        yield "rank"
    if evidence.recorded.host_of(cause.rank) == f"n{made.node}":
        yield "node"


def _campaign(folder: Path, real: list[str], nodes: int, ranks: int, times: int) -> Counter[str]:
    """Simulate each failure, and count the facts that were found."""
    (folder / "real").mkdir()
    logs = failure_logs(folder / "real", real)
    counts = Counter[str]()
    for seed, (case, lines) in enumerate([(case, logs[case]["0"]) for case in logs for _ in range(times)]):
        place = folder / str(seed)
        made = _Simulated(seed, nodes, ranks, case.partition(".")[0], lines, place)
        counts.update([*_judge(made, place), "failures"])
    return counts


def _rates(counts: Counter[str]) -> dict[str, float]:
    return {fact: counts[fact] / counts["failures"] for fact in ("kind", "rank", "uncorrected", "node", "named")}


def test_the_first_failure_is_found_with_clocks_that_differ(tmp_path: Path) -> None:
    real = ["missing-file", "disk-full", "script-error.key", "segmentation-fault"]
    rates = _rates(_campaign(tmp_path, real, nodes=12, ranks=2, times=3))
    assert rates["kind"] >= 0.9 and rates["rank"] >= 0.75 and rates["node"] >= 0.75, rates


@pytest.mark.soak
def test_the_first_failure_of_a_thousand_ranks_is_found(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    nodes, ranks, times = 128, 8, request.config.getoption("--campaign-count") or 1
    began_s = time.monotonic()
    counts = _campaign(tmp_path, list(plain_failures.CASES), nodes, ranks, times)
    rates = _rates(counts)
    shown = " | ".join(f"{100 * rates[fact]:.1f}" for fact in ("kind", "rank", "uncorrected", "node", "named"))
    row = f"| {nodes} | {ranks} | {counts['failures']} | {shown} |"
    print(row, f"{time.monotonic() - began_s:.0f} s")
    soak_page.put("causes", _HEADER, row, cells=2)
    assert rates["kind"] >= 0.95 and rates["node"] >= 0.9, rates
