"""Refusals of replays that would prove nothing. Each publishes a verdict with the reason."""

import time
from collections.abc import Sequence

from m5ws.errors import CorruptObject, NotFound, UnknownSchema
from m5ws.outputs import merging
from m5ws.records.outputs import OutputFiles
from m5ws.records.reasons import Ended, Gap, Reason, Unreadable
from m5ws.records.run import Run
from m5ws.records.verdict import Change, Verdict
from m5ws.repository import bindings, concurrency
from m5ws.repository.references import checkpoints, outputs, runs
from m5ws.repository.repository import Repository
from m5ws.runs import state
from m5ws.runs.history import History


def of_checkpoints(repo: Repository, replay: Run, original: History) -> Verdict | None:
    """Publish a replay whose original has a foreign checkpoint or output file, and return its verdict.

    Return None if every checkpoint of the repeated steps, and every output file that decides, is the run's own.
    """
    why = foreign_checkpoint(repo, replay, original) or foreign_outputs(repo, replay.reproduces or "", original)
    return refuse(repo, replay, Unreadable(problem=why)) if why is not None else None


def foreign_checkpoint(repo: Repository, replay: Run, original: History) -> str | None:
    """Return the fault of a checkpoint within the replayed steps, with the remedy; None if each is the run's own.

    A verdict *reproduced* covers the checkpoints in the store, and not only their records in the ledger.
    """
    run, segment = replay.reproduces or "", replay.segment

    def fault(label: str) -> str | None:
        if segment is not None and not segment.first <= checkpoints.step_of(label) <= segment.last:
            return None
        try:
            checkpoints.find(repo, run, label, original.published)
        except NotFound as error:
            retired = repo.store.stat(checkpoints.key(run, label)) is None
            return None if retired else f"checkpoint {label} cannot be read: {error}. {CorruptObject.hint}"
        except (CorruptObject, UnknownSchema) as error:
            return f"checkpoint {label} cannot be read: {error}. {error.hint}"
        return None

    return next(filter(None, concurrency.for_each(fault, checkpoints.valid(repo, run))), None)


def foreign_outputs(repo: Repository, run: str, original: History) -> str | None:
    """Return the fault of output files, with the remedy; None if the store has the files of the ledger, and the nodes
    left no different content at one path.
    """
    for label, event in original.stored.items():
        try:
            bindings.check_event(outputs.key(run, label), *outputs.find(repo, run, label), event)
        except NotFound:
            return f"output files {label} are in the ledger and missing in the store. {CorruptObject.hint}"
        except (CorruptObject, UnknownSchema) as error:
            return f"{error}. {error.hint}"
    try:
        merging.merge(repo, [repo.objects.get_record(event.record, OutputFiles) for event in original.outputs])
    except merging.OutputsConflict as error:
        return str(error)
    return None


def of_failed(repo: Repository, replay: Run, outcome: str) -> Verdict:
    """Publish a replay of a run that ended with `outcome` before its first recorded step, and return its verdict."""
    name = replay.reproduces or ""
    newest = state.load_newest(repo, name).newest
    reason = newest.reason if newest is not None else None
    return refuse(repo, replay, Ended(side="original", outcome=outcome, reason=reason))


def refuse(
    repo: Repository, replay: Run, why: Reason, changes: tuple[Change, ...] = (), left: Sequence[Gap] = ()
) -> Verdict:
    """Publish a replay that does not begin, and return its verdict. `left` lists files that were not stored."""
    runs.publish(repo, replay)
    return Verdict(
        run=replay.reproduces or "",
        replay=replay.id,
        outcome="not comparable",
        segment=replay.segment,
        not_compared=(Gap(kind="nothing run"), *left),
        changes=changes,
        reasons=(why,),
        created_s=time.time(),
    )
