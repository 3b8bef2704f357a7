"""The parts of a run that a comparison does not cover."""

from collections.abc import Iterable, Iterator

from m5ws.environment import reads
from m5ws.records.ledger import COMPLETE
from m5ws.records.reasons import Gap, GapKind
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import Comparison
from m5ws.runs.step_lists import absent_in, describe_ranges, join_ranks
from m5ws.wording.lists import list_names

_NAMED = 3


def missing(comparison: Comparison) -> tuple[Gap, ...]:
    """Return the steps of the original that the replay lacks."""
    if comparison.replay.without_place:
        return ()
    absent = {
        rank: absent_in(comparison.replay.steps.get(rank, {}), steps)
        for rank, steps in comparison.original.steps.items()
    }
    return tuple(Gap(kind="missing steps", ranks=ranks, steps=steps) for ranks, steps in join_ranks(absent))


def doubts(comparison: Comparison) -> Iterator[Gap]:
    """Yield the gaps because of which equal records do not prove an equal end."""
    original, replay = comparison.original, comparison.replay
    if original.outcome is None:
        yield Gap(kind="no end")
    if steps := [side.unobserved_after for side in (original, replay) if side.unobserved_after is not None]:
        yield Gap(kind="observation failed", step=min(steps))
    for attempt in comparison.without_place():
        yield Gap(kind="attempt without place", number=attempt)
    if comparison.ends_unknown():
        yield Gap(kind="script end unknown")
    unlike = comparison.unlike_ends()
    yield from (Gap(kind="weights of one side", name=name) for name in unlike[:_NAMED])
    if len(unlike) > _NAMED:
        yield Gap(kind="more weights of one side", number=len(unlike) - _NAMED)
    if original.outcome == replay.outcome == "failed" and original.reason != replay.reason:
        yield Gap(kind="other failure", original=original.reason, replayed=replay.reason)


def unrestored(comparison: Comparison) -> tuple[Gap, ...]:
    """Return the generators that differ after a resume of a script without a session."""
    names = ", ".join(sorted(comparison.unrestored))
    return tuple(
        Gap(kind="generators not restored", name=names, ranks=ranks, steps=steps)
        for ranks, steps in join_ranks(comparison.unrestored_after)
    )


def lost(comparison: Comparison) -> tuple[Gap, ...]:
    """Return the steps that the original trained but its record lacks."""
    return tuple(Gap(kind="lost steps", ranks=ranks, steps=steps) for ranks, steps in join_ranks(comparison.lost_steps))


def only_in_original(comparison: Comparison) -> tuple[Gap, ...]:
    """Return the states and checkpoints that only the original has.

    Ctrl-C makes an attempt save at its current step. A replay that nobody stops does not save there.
    """
    absent = {
        rank: absent_in(comparison.replay.states.get(rank, {}), states)
        for rank, states in comparison.original.states.items()
    }
    gaps = [Gap(kind="states of the original", ranks=ranks, steps=steps) for ranks, steps in join_ranks(absent)]
    if contents := sorted(set(comparison.original.contents) - set(comparison.replay.contents)):
        gaps.append(Gap(kind="checkpoints of the original", steps=describe_ranges(contents)))
    return tuple(gaps)


def unrecorded(comparison: Comparison, begin: int) -> Iterator[Gap]:
    """Yield the records that neither side has, so that nobody takes them for verified. The replay starts at `begin`."""
    original = comparison.original
    if original.outcome != "finished":
        yield Gap(kind="original ended", name=original.outcome or "unrecorded", step=original.last_step)
    if not original.by_steps:
        yield Gap(kind="no steps")
        return
    for kind in ("quantities", "batches", "generators") if comparison.first() is None else ():
        if not comparison.equal[kind]:
            yield Gap(kind="none recorded", name=kind)
    last = original.last_step
    between = last - begin - sum(1 for step in original.states.get(0, {}) if step)
    if between > 0:
        yield Gap(kind="states between", number=between, steps=str(last - begin))
    yield from unseen_end(comparison)


def unpinned(repo: Repository, runs: Iterable[str]) -> Iterator[Gap]:
    """Yield the files that runs read and no snapshot contains, and the hosts that they connected to."""
    known = reads.of_runs(repo, runs)
    lists: dict[GapKind, list[str]] = {
        "files outside": [read.path for read in known.unpinned],
        "hosts": list(known.hosts),
    }
    for kind, names in lists.items():
        if names:
            yield Gap(kind=kind, number=len(names), name=list_names(names, most=_NAMED))


def unseen_end(comparison: Comparison) -> Iterator[Gap]:
    """Yield the gap of scripts that ended without a module or parameter alive: later changes of weights are unseen."""
    original = comparison.original
    if original.outcome in COMPLETE and original.weights and not any(original.weights.values()):
        yield Gap(kind="no weights alive")
