"""A run that goes on, for people: as a view of the whole terminal, or as lines of their own."""

from typing import TYPE_CHECKING

from m5ws.cli.terminal import output
from m5ws.cli.terminal.output import Line, StyledText
from m5ws.wording.failures import describe_end, describe_failure
from m5ws.wording.lists import count

if TYPE_CHECKING:
    from m5ws.reports.live import LiveState

_COLOURS = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow", "unsaved": "red"}
_ERRORS = 3


def lines(state: "LiveState", now_s: float) -> list[Line]:
    """Return the view of a run."""
    return [_title(state), *_facts(state, now_s), _checkpoints(state), *_notices(state), *_errors(state)]


def _title(state: "LiveState") -> Line:
    attempt = state.newest
    name = f" {_one_line(state.name)}" if state.name else ""
    where = f", attempt {attempt.attempt} on {_one_line(attempt.host or 'an unknown host')}" if attempt.attempt else ""
    ranks = f", {attempt.world} ranks" if attempt.world else ""
    standing = StyledText(attempt.standing, _COLOURS.get(attempt.standing), bold=True)
    return (StyledText(f"run {state.run}", bold=True), f"{name}  ", standing, f"{where}{ranks}")


def _step(state: "LiveState") -> str:
    total = state.newest.total_steps
    return f"step {state.newest.last_step:,}" + (f"/{total:,}" if total else "")


def _speed(state: "LiveState") -> list[str]:
    parts = []
    if state.steps_per_s is not None:
        slow = state.steps_per_s < 1
        parts.append(f"{1 / state.steps_per_s:.3g} s/step" if slow else f"{state.steps_per_s:.3g} steps/s")
    if state.tokens_per_s is not None:
        parts.append(f"{state.tokens_per_s:,.0f} tokens/s")
    if state.left_s is not None:
        parts.append(f"{output.duration(state.left_s)} left")
    return parts


def _facts(state: "LiveState", now_s: float) -> list[Line]:
    attempt, parts = state.newest, [_step(state), *_speed(state)]
    if attempt.standing == "running" and state.last_s:
        parts.append(f"last event {output.duration(now_s - state.last_s)} ago")
    elif attempt.ended_s and attempt.started_s:
        parts.append(f"took {output.duration(attempt.ended_s - attempt.started_s)}")
    shown: list[Line] = ["  ".join(parts)]
    ordered = sorted(attempt.quantities, key=lambda name: (name != "loss", not name.endswith("loss"), name != "lr"))
    if ordered:
        numbers = (f"{_one_line(name)} {_one_line(output.number(attempt.quantities[name]))}" for name in ordered)
        shown.append("  ".join(numbers))
    if state.not_finite is not None:
        words = f"the first loss that is no finite number is in step {state.not_finite:,}"
        shown.append((StyledText(words, "red"),))
    if attempt.reason is not None:
        shown.append(f"{attempt.standing}: {_one_line(describe_end(attempt.reason))}")
    return shown


def _checkpoints(state: "LiveState") -> Line:
    if state.last_checkpoint is None:
        return "no checkpoint yet" if state.newest.standing == "running" else "no checkpoint"
    return f"{count(state.checkpoints, 'checkpoint')}, the last after step {state.last_checkpoint:,}"


def _notices(state: "LiveState") -> list[Line]:
    earlier = state.notice_count - len(state.notices)
    shown: list[Line] = [f"{earlier:,} earlier notices"] if earlier else []
    for event in state.notices:
        where = f" (step {event.step})" if event.step is not None else ""
        shown.append((StyledText(f"{event.kind}{where}: {_one_line(event.message)}", "yellow"),))
    return shown


def _errors(state: "LiveState") -> list[Line]:
    ranks = sorted(state.newest.rank_failures, key=lambda rank: (len(rank), rank))
    more = len(ranks) - _ERRORS
    shown: list[Line] = [
        f"rank {rank}: {_one_line(describe_failure(state.newest.rank_failures[rank]))}" for rank in ranks[:_ERRORS]
    ]
    return [*shown, f"{more:,} more ranks have errors"] if more > 0 else shown


def _one_line(text: str) -> str:
    return " ".join(text.split())
