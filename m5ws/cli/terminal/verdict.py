"""A verdict for people: the result, the evidence, and the differences."""

from collections.abc import Sequence

from m5ws.cli.terminal import change_text, explanation, output
from m5ws.records.ledger import COMPLETE
from m5ws.records.verdict import ComparedItem, Divergence, JointVerdict, Recheck, Verdict
from m5ws.wording import changes
from m5ws.wording.comparisons import describe_item_reason, describe_problem, label
from m5ws.wording.sentences import describe

_LISTED = 20
"""Items that are printed, each in a line."""
_NAMED = 5
"""Items that are printed in one line."""


def print_recheck(first: Divergence, second: str) -> None:
    """Print on stderr that a replay diverged and is repeated."""
    if first.is_result:
        output.print_note(f"difference in {label(first)}: repeating the replay as {second}")
        return
    output.print_note(
        f"difference at step {first.step} ({label(first)}): repeating the replay up to this step as {second}"
    )


def format_verdict(verdict: Verdict) -> str:
    """Return a verdict in lines: the result, then the evidence, then the changes that may be the cause."""
    part = f", {verdict.segment}" if verdict.segment is not None else ""
    evidence = " (observed)" if verdict.observed else ""
    replays = " and ".join(_replays(verdict))
    lines = [f"{_title(verdict)}{evidence}: run {verdict.run}{part}, replayed as {replays}"]
    lines.append(f"  {describe(verdict)}")
    if verdict.hint is not None:
        lines.append(f"  {describe(verdict.hint)}")
    if verdict.first is not None:
        lines += ["", *format_divergence(verdict.first)]
    if verdict.recheck is not None:
        lines += ["", *_format_recheck(verdict.recheck)]
    if verdict.explanation is not None:
        lines += ["", *explanation.format_explanation(verdict.explanation)]
    if verdict.compared:
        lines += ["", f"equal: {', '.join(f'{count:,} {kind}' for kind, count in verdict.compared.items())}"]
    if differ := [item for item in verdict.unequal if item.status == "differs"]:
        lines += ["", "differ:", *_format_items(differ)]
    absent = [item for item in verdict.unequal if item.status == "not compared"]
    if verdict.not_compared or absent:
        lines += ["", "not compared:", *(f"  {describe(gap)}" for gap in verdict.not_compared), *_format_absent(absent)]
    # The reason already contains the only change, with both values.
    is_told = verdict.first is not None and len(verdict.changes) == 1 and changes.is_named_whole(verdict.changes[0])
    if verdict.changes and not is_told:
        lines += [
            "",
            "changed since the original:",
            *map(output.plain_text, change_text.lines(verdict.changes, brief=True)),
        ]
    return "\n".join(lines)


def _format_items(items: Sequence[ComparedItem]) -> list[str]:
    """Return a line for each of the first items, and the number of others."""
    lines = [f"  {output.plain_text(describe(item))}" for item in items[:_LISTED]]
    return [*lines, f"  and {len(items) - _LISTED} more (--json lists all)"] if len(items) > _LISTED else lines


def _format_absent(items: Sequence[ComparedItem]) -> list[str]:
    """Return lines on items that were not compared. Items with one reason share a line."""
    reasons = dict.fromkeys((item.reason, item.problem) for item in items)
    groups = [[item for item in items if (item.reason, item.problem) == reason] for reason in reasons]
    return [line for group in groups for line in (_format_items(group) if len(group) == 1 else [_format_group(group)])]


def _format_group(items: Sequence[ComparedItem]) -> str:
    names = ", ".join(f"{item.kind} {item.name}" for item in items[:_NAMED])
    more = f" and {len(items) - _NAMED} more (--json lists all)" if len(items) > _NAMED else ""
    return output.plain_text(f"  {names}{more}: {describe_item_reason(items[0])}")


def _title(verdict: Verdict) -> str:
    """Return the result as a title. A proven fault of a resume, or of a restored segment, comes before the outcome."""
    if verdict.recheck is not None and verdict.is_inexact:
        return "INEXACT RESUME" if verdict.recheck.replay is None else "INEXACT RESTORE"
    ends = (gap for gap in verdict.not_compared if gap.kind == "original ended" and gap.name not in COMPLETE)
    if (end := next(ends, None)) is not None and verdict.outcome in ("reproduced", "sampled"):
        until = f" up to step {end.step}" if end.step else ""
        return f"{verdict.outcome.upper()}{until} (the end of the original: {end.name})"
    return verdict.outcome.upper()


def _replays(verdict: Verdict) -> tuple[str, ...]:
    """Return the replays that repeat the run. Replays for the explanation are listed with it."""
    explaining = verdict.explanation.replays if verdict.explanation is not None else ()
    return tuple(name for name in verdict.replays if name not in explaining)


def format_joint(joint: JointVerdict) -> str:
    """Return the result of segment replays together, and the state of each range of steps."""
    lines = [f"segment by segment, {output.moment(joint.created_s)}: {joint.outcome}", f"  {describe(joint.reason)}"]
    return "\n".join([*lines, output.fields(joint.parts, "  ")])


def _format_recheck(recheck: Recheck) -> list[str]:
    if recheck.replay is None and recheck.start is None:
        return [f"second replay: could not be started: {describe_problem(recheck)}"]
    until = f", up to step {recheck.last}" if recheck.last is not None else ""
    lines = []
    if recheck.replay is not None:
        differs = "differs from the first" if recheck.first else None
        result = differs or ("agrees with the first" if recheck.repeats else "no result")
        lines.append(f"second replay: {recheck.replay}{until}: {result}")
    if recheck.first is not None:
        lines += format_divergence(recheck.first, ("first", "second"), "first difference")
    if recheck.start is not None:
        equal = {None: "no result", True: "equal to the original", False: "differs from the original too"}
        lines.append(f"from the start: {recheck.start}{until}: {equal[recheck.start_equal]}")
    return lines


def format_divergence(
    divergence: Divergence, sides: tuple[str, str] = ("original", "replayed"), title: str = "first difference"
) -> list[str]:
    """Return a first difference in lines, with the values of both sides."""
    at = "" if divergence.is_result else f"step {divergence.step}, rank {divergence.rank}, "
    gap = f" (equal after step {divergence.equal_after}, not recorded in between)"
    where = f"{title}: {at}{label(divergence)}{gap if divergence.equal_after is not None else ''}"
    values = (divergence.original, divergence.replayed)
    if values == (None, None):
        # A file of an unknown format is judged by its bytes, and has no place with values.
        return [f"{where}: bytes"]
    lines = [where, *(f"  {side.ljust(8)}  {_exact(value)}" for side, value in zip(sides, values, strict=True))]
    if len(divergence.differing) > 1:
        lines.append(f"  differ    {', '.join(divergence.differing)}")
    if divergence.tensor is not None:
        at = f" (state after step {divergence.tensor_step})" if divergence.tensor_step is not None else ""
        more = f", {divergence.tensors_differ} tensors differ" if divergence.tensors_differ > 1 else ""
        lines.append(f"  tensor    {divergence.tensor}{at}{more}")
    return lines


def _exact(value: str | None) -> str:
    if value is None:
        return "absent"
    shown = output.number(value)
    return value if shown == value else f"{value} ({shown})"
