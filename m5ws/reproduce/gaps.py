"""The parts of a run that a comparison does not cover, as text for people."""

from collections.abc import Iterator

from m5ws.records.ledger import COMPLETE
from m5ws.reproduce.compare import Comparison
from m5ws.runs.step_lists import absent_in, describe_ranges, join_ranks

_NAMED = 3


def missing(comparison: Comparison) -> tuple[str, ...]:
    """Return the steps of the original that the replay lacks, as text for people."""
    if comparison.replay.without_place:
        return ()
    absent = {
        rank: absent_in(comparison.replay.steps.get(rank, {}), steps)
        for rank, steps in comparison.original.steps.items()
    }
    return tuple(f"{ranks}: steps {steps} of the original were not replayed" for ranks, steps in join_ranks(absent))


def doubts(comparison: Comparison) -> Iterator[str]:
    """Yield the gaps because of which equal records do not prove an equal end, as clauses."""
    original, replay = comparison.original, comparison.replay
    if original.outcome is None:
        yield "the end of the original is not recorded"
    if steps := [side.unobserved_after for side in (original, replay) if side.unobserved_after is not None]:
        yield f"an error ended the observation of the script after step {min(steps)} (`m5ws show`)"
    for attempt in comparison.without_place():
        yield (
            f"the steps of attempt {attempt} are not compared: no record proves after which step it continued. State "
            "it in the script, before its first step: `m5ws.resumed_at(step)`"
        )
    if comparison.ends_unknown():
        yield "the end of the script is not recorded: it left Python by os._exit, or its machine was lost"
    unlike = comparison.unlike_ends()
    for name in (*unlike[:_NAMED], *([f"{len(unlike) - _NAMED} other weights"] if len(unlike) > _NAMED else [])):
        yield f"at the end of the script, one side or none has a record of {name}"
    if original.outcome == replay.outcome == "failed" and original.message != replay.message:
        yield f"the original ended with {original.message}, and the replay with {replay.message}"


def unrestored(comparison: Comparison) -> tuple[str, ...]:
    """Return the generators that differ after a resume of a script without a session, as clauses."""
    names = ", ".join(sorted(comparison.unrestored))
    return tuple(
        f"generators ({names}) of {ranks} differ after steps {steps}: the resume may not restore them, so draws that "
        "nothing records may differ"
        for ranks, steps in join_ranks(comparison.unrestored_after)
    )


def lost(comparison: Comparison) -> tuple[str, ...]:
    """Return the steps that the original trained but its record lacks, as text for people."""
    return tuple(
        f"{ranks}: steps {steps} of the original are not in its record, and a checkpoint after them exists. Their "
        "attempt lost its machine before it delivered them, or a later attempt started from the beginning"
        for ranks, steps in join_ranks(comparison.lost_steps)
    )


def only_in_original(comparison: Comparison) -> tuple[str, ...]:
    """Return the states and checkpoints that only the original has, as text for people.

    Ctrl-C makes an attempt save at its current step. A replay that nobody stops does not save there.
    """
    absent = {
        rank: absent_in(comparison.replay.states.get(rank, {}), states)
        for rank, states in comparison.original.states.items()
    }
    lines = [f"{ranks}: the replay did not record the state after steps {steps}" for ranks, steps in join_ranks(absent)]
    if contents := sorted(set(comparison.original.contents) - set(comparison.replay.contents)):
        lines.append(f"the replay made no checkpoints of steps {describe_ranges(contents)}")
    return tuple(lines)


def unrecorded(comparison: Comparison, begin: int) -> Iterator[str]:
    """Yield the records that neither side has, so that nobody takes them for verified. The replay starts at `begin`."""
    original = comparison.original
    if not original.by_steps:
        yield "steps and state: no step was recorded or observed; only files and metrics could be compared"
        return
    for kind in ("quantities", "batches", "generators") if comparison.first() is None else ():
        if not comparison.equal[kind]:
            yield f"{kind}: none were recorded"
    last = original.last_step
    between = last - begin - sum(1 for step in original.states.get(0, {}) if step)
    if between > 0:
        yield f"state after {between} of {last - begin} steps: no fingerprints were recorded there"
    if original.outcome != "finished":
        yield f"the original ended {original.outcome or 'unrecorded'} after step {last}"
    if original.outcome in COMPLETE and original.weights and not any(original.weights.values()):
        yield "weights at the end of the script: none were alive"
