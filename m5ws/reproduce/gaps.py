"""The parts of a run that a comparison does not cover, as text for people."""

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


def unplaced(comparison: Comparison) -> tuple[str, ...]:
    """Return a line on each attempt whose steps have no numbers in the run, with the line that states their place."""
    return tuple(
        f"the steps of attempt {attempt}: no record proves after which step it continued. State it in the script, "
        "before its first step: `m5ws.resumed_at(step)`"
        for attempt in comparison.without_place()
    )


def ends(comparison: Comparison) -> tuple[str, ...]:
    """Return lines on weights at the end of the script that are not compared."""
    unlike = comparison.unlike_ends()
    lines = [f"at the end of the script: {name} (one side or none has a record)" for name in unlike[:_NAMED]]
    if len(unlike) > _NAMED:
        lines.append(f"at the end of the script: {len(unlike) - _NAMED} other weights (one side or none has a record)")
    weights = comparison.original.weights
    if weights and not any(weights.values()):
        lines.append("weights at the end of the script: none were alive")
    return tuple(lines)


def unobserved(comparison: Comparison) -> tuple[str, ...]:
    """Return a line if an error ended the observation of either side."""
    steps = [
        side.unobserved_after for side in (comparison.original, comparison.replay) if side.unobserved_after is not None
    ]
    if not steps:
        return ()
    return (f"steps after step {min(steps)}: an error ended the observation of the script (`m5ws show`)",)


def differing_generators(comparison: Comparison) -> tuple[str, ...]:
    """Return the steps after which generators differ that a resume may not have restored, as text for people."""
    return tuple(
        f"{ranks}: generators differ after steps {steps}, which the resume may not restore"
        for ranks, steps in join_ranks(comparison.generator_steps)
    )


def lost(comparison: Comparison) -> tuple[str, ...]:
    """Return the steps that the original trained but its record lacks, as text for people.

    The machine of an attempt was lost before it delivered them, and a checkpoint after those steps exists. Or an
    attempt in between started from the beginning, and so replaced them in the record.
    """
    restarted = comparison.original.observed and any(
        begin == 0 and attempt > 1 for begin, attempt in comparison.original.begun
    )
    cause = (
        "A later attempt started from the beginning, and the next one resumed from an older checkpoint, made after them"
        if restarted
        else "Their attempt was resumed on another machine before it delivered them"
    )
    return tuple(
        f"{ranks}: steps {steps} of the original are not in its record. {cause}"
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
