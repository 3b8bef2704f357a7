"""Log lines: equal warnings at growing intervals, whatever part of m5ws they come from."""

import logging

import pytest

from m5ws.cli.terminal import log_output
from m5ws.cli.terminal.log_output import Repeats

_AWAY = "PutObject on objects/{}/{} was denied"


def test_equal_warnings_are_printed_at_growing_intervals() -> None:
    now_s = 0.0
    repeats = Repeats(clock=lambda: now_s)
    printed = []
    for second in range(400):
        now_s = float(second)
        if (line := repeats.admit("away")) is not None:
            printed.append((second, line))
    assert [second for second, _ in printed] == [0, 10, 30, 70, 150, 310]
    assert printed[:2] == [(0, "away"), (10, "away (9 more since the last such line)")]


def test_texts_that_differ_in_digests_alone_are_equal_and_ids_of_runs_differ() -> None:
    repeats = Repeats(clock=lambda: 0.0)
    lines = [_AWAY.format("ab", "ab" * 32), _AWAY.format("cd", "cd" * 32), "run ab12ab12ab12", "run cd34cd34cd34"]
    assert [repeats.admit(line) is not None for line in lines] == [True, False, True, True]


def test_every_logged_warning_passes_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # pytest's own, which would be closed
    end = log_output.begin(logging.WARNING)
    try:
        for name in ("m5ws.agent", "m5ws.store"):
            for _ in range(3):
                logging.getLogger(name).warning("the store is %s", "away")
        logging.getLogger("m5ws").error("bad\x1b[1m")
    finally:
        end()
        root.handlers[:] = handlers
        root.setLevel(level)
    assert capsys.readouterr().err.splitlines() == ["warning: the store is away", "error: bad\\x1b[1m"]
