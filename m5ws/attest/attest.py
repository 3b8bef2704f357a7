"""`attest`: a statement on the newest verdicts on a run, with all their evidence, for others to verify.

The statement lists the stored bytes of the run, its snapshot, checkpoints, segments, environments and verdicts, and the
head of each ledger chain. Reads only, and verifies every read: a damaged run has no statement.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import m5ws
from m5ws.attest import claims
from m5ws.errors import CorruptObject, NotFound, UsageError
from m5ws.records.attestation import (
    ChainEnd,
    CheckpointLine,
    Descriptor,
    EnvironmentLine,
    OtherVerdict,
    OutputsLine,
    Predicate,
    Statement,
    VerdictLine,
    descriptor,
)
from m5ws.records.base import Digest
from m5ws.records.run import Run, Segment
from m5ws.records.verdict import Verdict
from m5ws.repository import bindings
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.ledger.chains import Chain, find_faults, first_missing
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, outputs, runs
from m5ws.repository.references.checkpoints import Recorded
from m5ws.repository.repository import Repository
from m5ws.reproduce import segments
from m5ws.reproduce.verdict.joint import joint_outcome
from m5ws.wording.sentences import describe

if TYPE_CHECKING:
    from m5ws.records.checkpoint import Checkpoint


def build(repo: Repository, run_id: str) -> Statement:
    """Return the statement on a run by its newest verdicts, or, for a replay, on its original by this verdict alone.

    Raises NotFound if there is no verdict, CorruptObject if an object is damaged.
    """
    named = runs.load(repo, run_id)
    run = runs.load(repo, named.reproduces) if named.reproduces is not None else named
    chosen, others = _verdicts(repo, run, None if named is run else named.id)
    parts = _segments(repo, run.id)
    outcome, reason = joint_outcome([verdict for _, verdict in chosen], parts)
    of_runs = [run.id, *(replay.id for replay, _ in chosen)]
    rechecks = [verdict.recheck for _, verdict in chosen if verdict.recheck is not None]
    again = (replay for recheck in rechecks for replay in (recheck.replay, recheck.start))
    of_runs += [replay for replay in again if replay is not None]
    chains = [(chain, ended) for name in of_runs for chain, ended in _chains(repo, name)]
    for name in (run.id, *(replay.id for replay, verdict in chosen if verdict.outcome == "reproduced")):
        if all(chain.run != name for chain, _ in chains):
            raise CorruptObject(f"run {name} has no ledger, on which its verdict rests")
    recorded = {event.name: event for chain, _ in chains if chain.run == run.id for event in chain.published}
    made, written = tuple(_checkpoints(repo, run, recorded)), tuple(_outputs(repo, run.id))
    subjects = [_reference(repo, f"runs/{run.id}/run"), _object(repo, run.snapshot)]
    subjects += [subject for line in made for subject in (line.record, line.content)]
    subjects += [subject for files in written for subject in (files.record, files.content)]
    return Statement(
        subject=tuple({subject.name: subject for subject in subjects}.values()),
        predicate=Predicate(
            m5ws=m5ws.__version__,
            hash=repo.format.hash,
            run=run.id,
            outcome=outcome,
            reason=describe(reason),
            snapshot=run.snapshot,
            segments=parts,
            verdicts=tuple(_verdict(repo, verdict) for _, verdict in chosen),
            other_verdicts=others,
            checkpoints=made,
            environments=tuple(_environments(repo, chains)),
            ledgers=tuple(_end(chain, ended=ended) for chain, ended in chains),
            outputs=written,
        ),
    )


def _verdicts(
    repo: Repository, run: Run, only: str | None
) -> tuple[list[tuple[Run, Verdict]], tuple[OtherVerdict, ...]]:
    """Return the newest verdict on the whole run and on each segment, in that order, and all other verdicts."""
    newest: dict[Segment | None, tuple[Run, Verdict]] = {}
    others = []
    for name in reversed(runs.replays(repo, run.id)):
        replay = runs.load(repo, name)
        verdict = runs.verdict(repo, replay)
        if verdict is None:
            continue
        changed = (replay.snapshot, replay.spec) != (run.snapshot, run.spec)
        if name == only or (only is None and not changed and verdict.segment not in newest):
            newest[verdict.segment] = (replay, verdict)
        else:
            why = (
                "another replay was named"
                if only
                else "its inputs were changed"
                if changed
                else "a newer verdict exists"
            )
            others.append(OtherVerdict(replay=name, outcome=verdict.outcome, why=why))
    if not newest:
        subject = f"replay {only}" if only else f"run {run.id}"
        raise NotFound(f"{subject} has no verdict to attest", hint=f"Make a verdict with `m5ws reproduce {run.id}`.")
    order = sorted(newest, key=lambda part: (part.first, part.last) if part is not None else (-1, 0))
    return [newest[part] for part in order], tuple(others)


def _segments(repo: Repository, run: str) -> tuple[Segment, ...]:
    try:
        return tuple(segments.of_run(repo, run))
    except UsageError:
        return ()  # Its script recorded no steps.


def _chains(repo: Repository, run: str) -> Iterator[tuple[Chain, bool]]:
    """Yield every chain of a run, followed to its end, and True if its attempt had ended.

    The chain of node 0 comes first. If it has the attempt's end, all events of the ranks are in the store.
    """
    begun = ledger.attempts(repo, run)
    if (absent := first_missing(begun)) is not None:
        raise CorruptObject(f"the ledger of run {run} lacks attempt {absent}")
    for attempt in begun:
        chains = [Chain(run, attempt, node).follow(repo) for node in ledger.nodes(repo, run, attempt)]
        if not chains or not chains[0].order.is_begun:
            raise CorruptObject(f"attempt {attempt} of run {run} lacks the event that begins it")
        if chains[0].order.ended is None:
            summaries.check_unended(repo, run, attempt)
        for fault in find_faults(chains, {}):
            raise CorruptObject(fault)
        yield from ((chain, chains[0].order.ended is not None) for chain in chains)


def _end(chain: Chain, *, ended: bool) -> ChainEnd:
    return ChainEnd(
        run=chain.run,
        attempt=chain.attempt,
        node=chain.node,
        batches=chain.batches,
        events=chain.order.events,
        head=chain.head,
        sha256=chain.sha256,
        ended=ended,
    )


def _checkpoints(repo: Repository, run: Run, recorded: Recorded) -> Iterator[CheckpointLine]:
    """Yield the valid checkpoints of a run, after the checkpoint that a fork starts from."""
    named: list[tuple[str, Digest, Checkpoint]] = []
    if (parent := run.parent) is not None:
        where = checkpoints.key(parent.run, parent.checkpoint)
        named.append(
            (
                parent.name,
                parent.digest,
                bindings.load_checkpoint(repo.objects, where, parent.digest, f"runs/{run.id}/run"),
            )
        )
    valid = checkpoints.valid(repo, run.id)
    named += [(f"{run.id}@{name}", *checkpoints.find(repo, run.id, name, recorded)) for name in valid]
    for name, digest, record in named:
        yield CheckpointLine(
            name=name, step=record.step, record=_object(repo, digest), content=_object(repo, record.content)
        )


def _outputs(repo: Repository, run: str) -> Iterator[OutputsLine]:
    """Yield the output files that the attempts of a run stored at their ends."""
    for name in filter(outputs.is_final, outputs.names(repo, run)):
        digest, files = outputs.find(repo, run, name)
        yield OutputsLine(name=f"{run}@{name}", record=_object(repo, digest), content=_object(repo, files.content))


def _environments(repo: Repository, chains: Sequence[tuple[Chain, bool]]) -> Iterator[EnvironmentLine]:
    for chain, _ in chains:
        for observed in chain.observed:
            yield EnvironmentLine(run=chain.run, attempt=chain.attempt, record=_object(repo, observed))


def _verdict(repo: Repository, verdict: Verdict) -> VerdictLine:
    return VerdictLine(
        found=claims.plain(verdict),
        replay=_reference(repo, f"runs/{verdict.replay}/run"),
        record=_reference(repo, f"runs/{verdict.replay}/verdict"),
    )


def _object(repo: Repository, digest: Digest) -> Descriptor:
    return descriptor(key(digest), repo.objects.get(digest))


def _reference(repo: Repository, where: str) -> Descriptor:
    return descriptor(where, repo.store.get(where))
