"""The cause of a failed attempt, from its logs and the failures that its ranks recorded."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from m5ws.errors import NotFound
from m5ws.logs import reading
from m5ws.records.cause import Cause, Rule
from m5ws.records.ledger import RankEnded
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.supervision import causes

_LAST_BATCHES = 3


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a failed attempt; None if it is unknown. `host` is the machine of the cause's rank, if known."""

    cause: Cause | None
    host: str | None = None


def diagnose(repo: Repository, run: str, attempt: int, folder: Path | None, rules: Mapping[str, Rule]) -> Diagnosis:
    """Return the cause of a failed attempt by `rules`. Its logs are in `folder`, if there is one, or else in the store.

    Raises NotFound without logs, ConfigError for a pattern that is no regular expression, CorruptObject, Misplaced.
    """
    lines: dict[str, list[str]] = {}
    for name, new in reading.source_of(repo, run, attempt, folder).read(last=True):
        lines.setdefault(name, []).extend(new)
    if not lines:
        raise NotFound(
            f"run {run} has no logs of attempt {attempt} on this machine, and none in the store",
            hint="Logs stay on the machine that started the run.",
        )
    failures = {str(rank): (time_s, host) for rank, time_s, host in _failures(repo, run, attempt)}
    times_s = {rank: time_s for rank, (time_s, _) in failures.items()}
    cause = causes.Classifier(rules).find(lines, times_s)
    host = failures[cause.rank][1] if cause is not None and cause.rank in failures else None
    return Diagnosis(cause=cause, host=host)


def _failures(repo: Repository, run: str, attempt: int) -> Iterator[tuple[int, float, str | None]]:
    """Yield each rank with a recorded failure, its time in seconds and its host, from the last batches of nodes."""
    hosts = {start.node: start.host for start in ledger.node_starts(repo, run, attempt)}
    for node in ledger.nodes(repo, run, attempt):
        for batch in itertools.islice(ledger.backwards(repo, run, attempt, node), _LAST_BATCHES):
            for _, event in ledger.decode(batch):
                if isinstance(event, RankEnded) and event.failure is not None:
                    yield event.rank, event.time_s, hosts.get(node)
