"""The explanation of a divergence, as lines for a terminal."""

from m5ws.cli.terminal import output
from m5ws.records.explanation import Explanation, FirstDifference, TracedReplay
from m5ws.records.run import Segment

_SIDES = {
    "original": "under the original's conditions",
    "replay": "as the replay that diverged",
    "again": "as the replay, repeated",
}


def print_side(side: TracedReplay, steps: Segment) -> None:
    """Print on stderr that a side is replayed."""
    output.print_note(f"explaining: {steps} {_SIDES[side.side]}, as {side.replay}")


def format_explanation(explanation: Explanation) -> list[str]:
    """Return an explanation in lines: place and cause first, then the evidence."""
    steps = (
        f"step {explanation.last}"
        if explanation.first == explanation.last
        else f"steps {explanation.first}-{explanation.last}"
    )
    lines = [f"examined {steps}: {_finding(explanation)}"]
    if explanation.place is not None:
        lines += _place(
            explanation.place, ("first", "second") if explanation.between == "two replays" else ("original", "replayed")
        )
    for number, cause in enumerate(explanation.causes):
        head = "cause" if not number else "and" if cause.certain else "or"
        lines += [f"  {head.ljust(9)} {cause}", *(f"            {fact}" for fact in cause.evidence)]
    for side in explanation.sides:
        name = side.replay or "not replayed"
        lines.append(f"  {side.side.ljust(9)} {name}: {side.problem or 'repeated its earlier result'}")
    return lines + [f"  limit     {limit}" for limit in explanation.limits]


def _finding(explanation: Explanation) -> str:
    if explanation.place is None:
        return "no difference was found"
    between = {"two replays": "two replays", "record and replay": "the original's ledger and the replay"}
    place = explanation.place
    ranks = "" if len(place.ranks) < 2 else f" (ranks {', '.join(map(str, place.ranks))} differ there)"
    sides = between.get(explanation.between or "", "original and replay")
    return f"{sides} first differ in step {place.step}, rank {place.rank}{ranks}"


def _place(place: FirstDifference, sides: tuple[str, str]) -> list[str]:
    lines = [f"  where     {place.words}"]
    if place.module is not None:
        settings = " → ".join(filter(None, (place.what, place.changed)))
        lines.append(f"  module    {place.module or '(the model)'}{f': {settings}' if settings else ''}")
    if place.op is not None:
        lines.append(f"  operation {place.op}")
    if place.tensor is not None:
        lines.append(f"  tensor    {place.tensor}")
    values = zip(sides, (place.original, place.replayed), strict=True)
    return lines + [f"  {side.ljust(9)} {'absent' if value is None else value}" for side, value in values]
