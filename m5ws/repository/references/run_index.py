"""The run index: facts of runs in the names of empty keys, so that one listing answers for all runs.

Invariant: a key states a fact that never changes, and its original was published before the key was. A missing key
costs a read of the original; docs/format.md, section "Run index", has the argument.
"""

import base64
import binascii
import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from m5ws.errors import ObjectExists
from m5ws.records.ledger import NODE, AnyEvent, AttemptEnded, AttemptStarted, Notice
from m5ws.records.run import Run
from m5ws.records.verdict import Verdict
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.ledger.losses import LossRange
from m5ws.repository.ledger.summaries import OriginSummary
from m5ws.repository.repository import Repository

PREFIX = "index/"
_MOST_CHARACTERS = 255
"""Length of the longest file name that all file systems take."""
_MOST_DIGITS = 10
"""Length of the longest number in a key: the step in a checkpoint's name."""
_NONE = "-"
_INEXACT = "inexact"


class RunCreation(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a `Run`; `parent` is the run that a fork starts from, `sweep` the id of its sweep.

    `created_s` is by the store's clock if the fact is of the index, and else by the clock of the run's host.
    """

    created_s: float
    snapshot: str
    reproduces: str | None = None
    parent: str | None = None
    name: str | None = None
    sweep: str | None = None


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt. `is_final`: it finished; this replaces the `unsaved` of the same attempt.

    `inexact`: the attempt repeated a step of an earlier attempt with other values.
    """

    attempt: int
    is_final: bool
    outcome: str
    last_step: int
    total_steps: int | None = None
    inexact: bool = False
    losses: LossRange = LossRange()


class RunFacts(msgspec.Struct, kw_only=True):
    """Facts of one run in the index; `ended` is the newest attempt that has ended, `losses` are by attempt.

    `inexact`: an attempt was.
    """

    created: RunCreation | None = None
    ended: AttemptEnd | None = None
    outcome: str | None = None
    inexact: bool = False
    losses: dict[int, LossRange] = {}


# --- facts ----------------------------------------------------------------------------------------------------------


def created(run: Run) -> RunCreation:
    """Return the facts of a run's record."""
    parent = run.parent.run if run.parent is not None else None
    return RunCreation(
        created_s=run.created_s,
        snapshot=run.snapshot,
        reproduces=run.reproduces,
        parent=parent,
        name=run.name,
        sweep=run.sweep.id if run.sweep is not None else None,
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


def created_key(run: str, fact: RunCreation, kind: Literal["created", "dated"] = "created") -> str | None:
    """Return the key of a run's creation; None if its name would be too long, or its time is no time.

    A `dated` key is of a run that was published earlier, and has that time.
    """
    name = _NONE if fact.name is None else f"n{base64.urlsafe_b64encode(fact.name.encode()).decode().rstrip('=')}"
    links = (fact.reproduces or _NONE, fact.parent or _NONE, name, fact.sweep or _NONE)
    return _key(run, kind, _double(fact.created_s), fact.snapshot, *links)


def is_creation(key: str) -> bool:
    """Return True for the key of a run's creation."""
    return key.rpartition("/")[2].partition(".")[0] in ("created", "dated")


def ended_key(run: str, fact: AttemptEnd) -> str | None:
    """Return the key of an attempt's end; None if a number would be too long."""
    total = _NONE if fact.total_steps is None else str(fact.total_steps)
    inexact, losses = _INEXACT if fact.inexact else _NONE, fact.losses
    parts = ("ended", str(fact.attempt), fact.outcome, str(fact.last_step), total, inexact)
    step = _NONE if losses.lowest_step is None else str(losses.lowest_step)
    return _key(run, *parts, _double(losses.last), _double(losses.lowest), step)


def verdict_key(run: str, outcome: str) -> str | None:
    """Return the key of a replay's verdict."""
    return _key(run, "verdict", outcome.replace(" ", _NONE))


def _double(value: float | None) -> str:
    return _NONE if value is None else struct.pack(">d", value).hex()


def _key(run: str, *parts: str) -> str | None:
    text = ".".join(parts)
    name = f"{text}.{_check(run, text)}"
    return f"{PREFIX}{run}/{name}" if len(name) <= _MOST_CHARACTERS and add(RunFacts(), run, name) else None


def _check(run: str, text: str) -> str:
    return hashlib.blake2b(f"{run}/{text}".encode(), digest_size=8).hexdigest()


def add(facts: RunFacts, run: str, name: str, modified_s: float | None = None) -> bool:
    """Add the fact in a key's name; return False, and add nothing, if m5ws does not write such a name.

    `modified_s`: the time of the key by the store's clock, which is the time of a run that began in this store.
    """
    text, _, check = name.rpartition(".")
    if check != _check(run, text):
        return False
    kind, *parts = text.split(".")
    try:
        if kind in ("created", "dated"):
            fact = _created(*parts)
            if kind == "created" and modified_s is not None:
                fact = msgspec.structs.replace(fact, created_s=modified_s)
            facts.created = fact if kind == "created" else facts.created or fact
        elif kind == "ended":
            ended = _ended(*parts)
            facts.ended = max(ended, facts.ended or ended, key=lambda end: (end.attempt, end.is_final))
            facts.inexact = facts.inexact or ended.inexact
            facts.losses[ended.attempt] = ended.losses
        elif kind == "verdict":
            (outcome,) = parts
            facts.outcome = outcome.replace(_NONE, " ")
        else:
            return False
    except (ValueError, TypeError, struct.error, binascii.Error):
        return False
    return True


def _created(time: str, snapshot: str, reproduces: str, parent: str, name: str, sweep: str) -> RunCreation:
    encoded = name[1:] + "=" * (-len(name[1:]) % 4)
    (created_s,) = struct.unpack(">d", bytes.fromhex(time))
    if not (math.isfinite(created_s) and created_s >= 0):
        raise ValueError(f"no time: {created_s}")
    return RunCreation(
        created_s=created_s,
        snapshot=snapshot,
        reproduces=None if reproduces == _NONE else reproduces,
        parent=None if parent == _NONE else parent,
        name=None if name == _NONE else base64.urlsafe_b64decode(encoded).decode(),
        sweep=None if sweep == _NONE else sweep,
    )


def _ended(attempt: str, outcome: str, last_step: str, total: str, inexact: str, *losses: str) -> AttemptEnd:
    if inexact not in (_NONE, _INEXACT):
        raise ValueError(f"no mark of an inexact resume: {inexact}")
    return AttemptEnd(
        attempt=_number(attempt),
        is_final=outcome == "finished",
        outcome=outcome,
        last_step=_number(last_step),
        total_steps=None if total == _NONE else _number(total),
        inexact=inexact == _INEXACT,
        losses=_losses(*losses),
    )


def _number(text: str) -> int:
    if not ledger.is_number(text) or len(text) > _MOST_DIGITS:
        raise ValueError(f"no number of a key: {text[:20]}")
    return int(text)


def _losses(last: str, lowest: str, step: str) -> LossRange:
    values = (None if text == _NONE else struct.unpack(">d", bytes.fromhex(text))[0] for text in (last, lowest))
    return LossRange(last=next(values), lowest=next(values), lowest_step=None if step == _NONE else _number(step))


# --- the store ------------------------------------------------------------------------------------------------------


def load(repo: Repository, run_id: str | None = None) -> dict[str, RunFacts]:
    """Return the facts of all runs that the index has, or of one run. One listing.

    Names that m5ws does not write are left out.
    """
    facts: dict[str, RunFacts] = {}
    for stat in repo.store.list(PREFIX if run_id is None else f"{PREFIX}{run_id}/"):
        run, _, name = stat.key.removeprefix(PREFIX).partition("/")
        add(facts.setdefault(run, RunFacts()), run, name, stat.modified_s)
    return facts


def names(repo: Repository, run: str) -> tuple[str, ...]:
    """Return the names of a run's keys in the index."""
    return repo.store.names(f"{PREFIX}{run}/")


def write(repo: Repository, key: str | None) -> None:
    """Create a key of the index, once; its original must be published already."""
    if key is not None:
        with suppress(ObjectExists):
            repo.store.create(key, b"")


def write_created(repo: Repository, run: Run, created_s: float | None = None) -> None:
    """Create the key of a published run, unless its purpose does not follow from the facts.

    `created_s`: the time of a run that was published earlier, in this store or in another store.
    """
    if run.purpose == ("reproduce" if run.reproduces else "train"):
        write(repo, created_key(run.id, created(run)) if created_s is None else dated_key(run, created_s))


def dated_key(run: Run, created_s: float) -> str | None:
    """Return the dated key of a run's creation."""
    return created_key(run.id, msgspec.structs.replace(created(run), created_s=created_s), "dated")


def write_verdict(repo: Repository, verdict: Verdict) -> None:
    """Create the key of a published verdict."""
    write(repo, verdict_key(verdict.replay, verdict.outcome))


def write_ended(repo: Repository, run: str, attempt: int, origins: Mapping[str, OriginSummary], length: int) -> None:
    """Create the summary and the key of an attempt, if its end is published, from events as in `summaries.read`."""
    if summaries.write(repo, run, attempt, origins, length):
        fact = ended(attempt, origins[NODE].events, origins.get("0"))
        write(repo, ended_key(run, fact) if fact is not None else None)


def expected(
    run: str, record: Run | None, ends: Iterator[AttemptEnd], outcome: str | None, present: Iterable[str]
) -> set[str]:
    """Return the keys that originals allow: of a run's record, of ends of its attempts, and of its verdict.

    A dated key among the `present` names may have any time, since this store has no record of the time.
    """
    keys = {ended_key(run, end) for end in ends}
    if record is not None:
        keys.add(created_key(run, created(record)))
        valid = (name for name in present if name.startswith("dated.") and add(RunFacts(), run, name))
        dated = [name.split(".")[1] for name in valid]
        keys |= {dated_key(record, struct.unpack(">d", bytes.fromhex(time))[0]) for time in dated}
    keys.add(verdict_key(run, outcome) if outcome is not None else None)
    return {key for key in keys if key is not None}
