"""The run index: facts of runs in the names of empty keys, so that one listing answers for the newest runs.

Invariant: a key states a fact that never changes, and its original was published before the key was. A missing key
costs a read of the original; docs/format.md, section "Index", has the argument.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from m5ws.records.base import Count
from m5ws.records.ledger import NODE, AnyEvent, AttemptEnded, AttemptStarted, Notice
from m5ws.records.run import Parent, Run
from m5ws.records.verdict import Verdict
from m5ws.repository import bindings
from m5ws.repository.ledger import summaries
from m5ws.repository.ledger.losses import LossRange
from m5ws.repository.ledger.summaries import OriginSummary
from m5ws.repository.references import index_names
from m5ws.repository.repository import Repository

RUNS = "runs"
"""The list of runs in the index."""


class RunCreation(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a `Run`; `fork` is the checkpoint that a fork starts from, `sweep` the id of its sweep."""

    created_s: float
    snapshot: str
    reproduces: str | None = None
    fork: Parent | None = None
    name: str | None = None
    sweep: str | None = None
    user: str | None = None
    host: str | None = None

    @property
    def parent(self) -> str | None:
        """The run that a fork starts from."""
        return self.fork.run if self.fork is not None else None


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt. `is_final`: it finished; this replaces the `unsaved` of the same attempt.

    `inexact`: the attempt repeated a step of an earlier attempt with other values.
    """

    attempt: Count
    is_final: bool
    outcome: str
    last_step: Count
    total_steps: Count | None = None
    inexact: bool = False
    losses: LossRange = LossRange()


class RunFacts(msgspec.Struct, kw_only=True):
    """Facts of one run in the index; `begun` is the newest attempt, `ended` the newest that has ended.

    `inexact`: an attempt was. `losses` are by attempt. `parameters` are the run's, as `ParameterReader` returns them.
    """

    created: RunCreation | None = None
    begun: int = 0
    ended: AttemptEnd | None = None
    outcome: str | None = None
    inexact: bool = False
    losses: dict[int, LossRange] = {}
    parameters: dict[str, str] | None = None


# --- facts ----------------------------------------------------------------------------------------------------------


def created(run: Run) -> RunCreation:
    """Return the facts of a run's record."""
    return RunCreation(
        created_s=run.created_s,
        snapshot=run.snapshot,
        reproduces=run.reproduces,
        fork=run.parent,
        name=run.name,
        sweep=run.sweep.id if run.sweep is not None else None,
        user=run.user,
        host=run.host,
    )


def ended(attempt: int, node: list[AnyEvent], rank: OriginSummary | None) -> AttemptEnd | None:
    """Return the fact of an attempt's end from the own events of node 0 and the events of rank 0; None while it has
    none.
    """
    last = summaries.last_step(rank.events) if rank is not None else None
    end = next((event for event in reversed(node) if isinstance(event, AttemptEnded)), None)
    if end is None:
        return None
    resumed = next((event.resume for event in node if isinstance(event, AttemptStarted)), None)
    begin = int(resumed.partition("-")[0]) if resumed else 0
    return AttemptEnd(
        attempt=attempt,
        is_final=end.outcome == "finished",
        outcome=end.outcome,
        last_step=max(begin, last.step if last is not None else 0),
        total_steps=last.total if last is not None else None,
        inexact=any(isinstance(event, Notice) and event.kind == "inexact-resume" for event in node),
        losses=rank.losses if rank is not None else LossRange(),
    )


# --- keys -----------------------------------------------------------------------------------------------------------

KINDS: Mapping[str, Any] = {
    "created": RunCreation,
    "begun": Count,
    "ended": AttemptEnd,
    "verdict": str,
    "parameters": dict[str, str],
}


def folder(run: Run) -> str | None:
    """Return the prefix of a run's keys; None if the time of its creation is no time."""
    return index_names.folder(RUNS, run.id, run.created_s)


def keys(run: Run, kind: str, value: object) -> tuple[str, ...]:
    """Return the keys of a fact of a run; none if the index cannot hold it."""
    prefix = folder(run)
    return () if prefix is None else tuple(prefix + name for name in index_names.names(run.id, kind, value))


def read(run_id: str, names: Iterable[str]) -> RunFacts:
    """Return the facts in the names of a run's keys. Names that m5ws does not write are left out."""
    facts = RunFacts()
    for kind, value in index_names.facts(run_id, names, KINDS):
        if kind == "begun":
            facts.begun = max(facts.begun, value)
        elif kind == "ended":
            facts.ended = max(value, facts.ended or value, key=lambda end: (end.attempt, end.is_final))
            facts.inexact = facts.inexact or value.inexact
            facts.losses[value.attempt] = value.losses
        else:
            setattr(facts, "outcome" if kind == "verdict" else kind, value)
    return facts


# --- the store ------------------------------------------------------------------------------------------------------


def newest(repo: Repository) -> Iterator[tuple[str, RunFacts]]:
    """Yield the runs that the index has, with their facts, the newest first."""
    for run_id, names in index_names.newest(repo.store, RUNS):
        yield run_id, read(run_id, names)


def load(repo: Repository) -> dict[str, RunFacts]:
    """Return the facts of all runs that the index has. One listing."""
    return dict(newest(repo))


def write(repo: Repository, run: Run, **facts: object) -> None:
    """Create the keys of facts by their kinds, once; their originals must be published already."""
    index_names.write(repo.store, [key for kind, value in facts.items() for key in keys(run, kind, value)])


def write_created(repo: Repository, run: Run) -> None:
    """Create the keys of a published run, unless its purpose does not follow from the facts."""
    if run.purpose == ("reproduce" if run.reproduces else "train"):
        write(repo, run, created=created(run))


def write_verdict(repo: Repository, verdict: Verdict) -> None:
    """Create the keys of a published verdict."""
    write(repo, _load(repo, verdict.replay), verdict=verdict.outcome)


def write_ended(repo: Repository, run: str, attempt: int, origins: Mapping[str, OriginSummary], length: int) -> None:
    """Create the summary and the keys of an attempt, if its end is published, from events as in `summaries.read`."""
    if summaries.write(repo, run, attempt, origins, length):
        fact = ended(attempt, origins[NODE].events, origins.get("0"))
        if fact is not None:
            write(repo, _load(repo, run), ended=fact)


def _load(repo: Repository, run_id: str) -> Run:
    return bindings.record(repo.store, f"runs/{run_id}/run", Run)


def expected(
    run: Run, attempts: Iterable[int], ends: Iterable[AttemptEnd], outcome: str | None, parameters: object
) -> set[str]:
    """Return the keys that originals allow: of a run's record, its attempts and their ends, and its verdict."""
    facts: list[tuple[str, object]] = [("created", created(run)), ("verdict", outcome), ("parameters", parameters)]
    facts += [("begun", attempt) for attempt in attempts] + [("ended", end) for end in ends]
    return {key for kind, value in facts if value is not None for key in keys(run, kind, value)}
