"""The parts of a run that a comparison does not cover, as text for people."""

from m5ws.reproduce.compare import Comparison
from m5ws.runs.step_lists import absent_in, describe_ranges, join_ranks


def missing(comparison: Comparison) -> tuple[str, ...]:
    """Return the steps of the original that the replay lacks, as text for people."""
    absent = {
        rank: absent_in(comparison.replay.steps.get(rank, {}), filter(comparison.is_placed, steps))
        for rank, steps in comparison.original.steps.items()
    }
    return tuple(f"{ranks}: steps {steps} of the original were not replayed" for ranks, steps in join_ranks(absent))


def unplaced(comparison: Comparison) -> tuple[str, ...]:
    """Return the steps that differ or are missing and whose numbers are guessed, as text for people."""
    unknown = (
        "The script continued from a checkpoint of its own, and the records do not show which steps it did after "
        f"step {comparison.placed_until}"
    )
    absent = {
        rank: absent_in(
            comparison.replay.steps.get(rank, {}), (step for step in steps if not comparison.is_placed(step))
        )
        for rank, steps in comparison.original.steps.items()
    }
    differ = [
        f"{ranks}: steps {steps} differ, and were not judged" for ranks, steps in join_ranks(comparison.unplaced_steps)
    ]
    lacking = [f"{ranks}: steps {steps} were not replayed" for ranks, steps in join_ranks(absent)]
    return tuple(f"{line}. {unknown}" for line in (*differ, *lacking))


def unobserved(comparison: Comparison) -> tuple[str, ...]:
    """Return a line if an error ended the observation of either side."""
    steps = [
        side.unobserved_after for side in (comparison.original, comparison.replay) if side.unobserved_after is not None
    ]
    if not steps:
        return ()
    return (f"steps after step {min(steps)}: an error ended the observation of the script (`m5ws show`)",)


def differing_generators(comparison: Comparison) -> tuple[str, ...]:
    """Return the steps after which generators that a resume did not restore differ, as text for people."""
    return tuple(
        f"{ranks}: generators that the resume does not restore differ after steps {steps}"
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
