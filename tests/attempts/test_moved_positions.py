"""Notices of a resume that skips or repeats samples, against a count of positions from the start."""

import random

from m5ws.attempts.repeated_steps import moved_positions
from m5ws.records.ledger import DataOrder, Step
from m5ws.records.sample_ids import format_ranges
from m5ws.runs.history import History

_SAMPLES = 20


def _ranges(start: int, count: int) -> str:
    return format_ranges((at // _SAMPLES, at % _SAMPLES, at % _SAMPLES + 1) for at in range(start, start + count))


def _earlier(steps: dict[int, Step], **source: bool) -> History:
    described = {"name": "web", "samples": _SAMPLES, "pack": False, "keep": False, **source}
    order = DataOrder(description={"sources": [described], "without": []})
    return History(steps={0: steps}, orders={1: order})


def _step(number: int, start: int) -> Step:
    return Step(step=number, quantities={}, samples={"web": _ranges(start, 6)})


def test_a_resume_reports_the_number_of_skipped_or_repeated_samples() -> None:
    draw = random.Random(3)
    for _ in range(200):
        at, moved, number = draw.randrange(30, 90), draw.choice((0, 1, -1, 7, -7, 25, -25)), draw.randrange(2, 9)
        resumed = _step(number, at + moved)
        for known in ({number - 1: _step(number - 1, at - 6)}, {number: _step(number, at)}):
            messages = [*moved_positions(_earlier(known), resumed)]
            assert len(messages) == (moved != 0)
            if moved:
                word = "skipped" if moved > 0 else "repeated"
                assert f"{word} {abs(moved)} samples of web" in messages[0]
                assert f"{at // _SAMPLES}:{at % _SAMPLES} is the next" in messages[0]


def test_a_gap_of_a_filtered_source_is_no_skipped_sample() -> None:
    assert not [*moved_positions(_earlier({1: _step(1, 0)}, keep=True), _step(2, 9))]
    assert [*moved_positions(_earlier({2: _step(2, 6)}, keep=True), _step(2, 9))]
