"""Faults in logs that go on as before are survived. Generated: any class, at any place of logs of many forms."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.supervision import causes

RULES = causes.builtin()
NAMED = causes.Classifier(
    {kind: msgspec.structs.replace(rule, patterns=(f"^{kind}$",)) for kind, rule in RULES.items()}
)
"""Rules that match the names of their classes alone."""
KINDS = st.sampled_from(sorted(RULES))
STEPS = (
    "step {n} loss {x:.4f}",
    "step={n}, lr=[{y:.1e}]",
    "2026-11-03 12:{s:02}:00,{n:03} - train - INFO - epoch 3 step {n} loss -{x:.2f}",
    '{{"step": {n}, "loss": {x}, "file": "/data/{n}/part.bin"}}',
    " {s:>2}%|{bar:<9}| {n:>6}/90000 [00:{s:02}<01:40,  9.98it/s]",
    "I1103 12:00:{s:02}.{n:06} 42 train.py:88] iteration {n:>8} | loss {x:.6E}",
)
"""Forms of lines of steps."""
SHUTDOWN = (
    "saving the state before the exit",
    "wandb: Synced 5 files to /wandb/run-7c1d",
    "[rank0]:[W1103 12:00:01.000000001 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
    "W1103 12:00:01.000000 41 api.py:1010] Sending process 77 closing signal SIGTERM",
    "Exception ignored in: <function Pool.__del__ at 0x7f0011223344>",
    "    self.close(3)",
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f00112233 in /lib/libc10.so)",
    "Aborted (core dumped)",
    "",
)
"""Lines that follow the end of a process."""


def _steps(form: str, first: int, count: int) -> list[str]:
    return [
        form.format(n=n, x=2.5 + 1 / (n + 1), y=3e-4 / (n + 1), s=n % 60, bar="█" * (1 + n % 9))
        for n in range(first, first + count)
    ]


def _traceback(name: str) -> list[str]:
    return ["Traceback (most recent call last):", '  File "/srv/train.py", line 7, in step', "    layer(x[3])", name]


def _kind(lines: list[str], name: str = "0") -> str | None:
    cause = NAMED.find({name: lines}, {})
    return None if cause is None else cause.kind


@given(st.sampled_from(STEPS), KINDS, st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_a_fault_is_survived_if_lines_of_the_form_before_follow(
    form: str, kind: str, before: int, after: int, has_traceback: bool
) -> None:
    fault = _traceback(kind) if has_traceback else [kind]
    lines = [*_steps(form, 7, before), *fault, *_steps(form, 7 + before, after)]
    assert _kind(lines) == (None if before > 1 and after else kind)


@given(st.sampled_from(STEPS), KINDS, st.integers(2, 60), st.lists(st.sampled_from(SHUTDOWN), max_size=30))
def test_a_shutdown_after_a_fault_is_no_progress(form: str, kind: str, before: int, shutdown: list[str]) -> None:
    lines = [*_steps(form, 0, before), *_traceback(kind), *shutdown]
    assert _kind(lines) == kind


@given(st.sampled_from(STEPS), KINDS, KINDS, st.integers(2, 60), st.integers(0, 9))
def test_faults_after_a_fault_are_no_progress(form: str, kind: str, later: str, before: int, count: int) -> None:
    lines = [*_steps(form, 0, before), *_traceback(kind), *itertools.chain(*[_traceback(later)] * count)]
    levels = {"cascade": 0, "script": 1, "root": 2}
    is_higher = count and levels[RULES[later].level] > levels[RULES[kind].level]
    assert _kind(lines) == (later if is_higher else kind)


@given(st.permutations(STEPS), KINDS, st.integers(2, 9), st.integers(1, 5), st.integers(1, 30))
def test_threads_that_go_on_are_no_progress_of_steps(
    forms: list[str], kind: str, steps: int, workers: int, moment: int
) -> None:
    """Workers write more lines than the steps, also after the fault."""
    step, worker = forms[:2]
    before = [line for n in range(steps) for line in (*_steps(worker, n * workers, workers), *_steps(step, 100 + n, 1))]
    lines = [*before, *_traceback(kind), *_steps(worker, steps * workers, moment)]
    assert _kind(lines) == kind
    assert _kind([*lines, *_steps(step, 100 + steps, 1)]) is None


@given(st.sampled_from(STEPS), KINDS, KINDS, st.integers(0, 2**32))
def test_the_last_fault_is_the_cause_after_survived_faults_of_any_level(
    form: str, survived: str, fatal: str, seed: int
) -> None:
    chance, lines = random.Random(seed), _steps(form, 0, 5)
    for _ in range(chance.randint(1, 5)):
        lines += [*_traceback(survived), *_steps(form, len(lines), chance.randint(1, 5))]
    assert _kind(lines) is None
    assert _kind([*lines, *_traceback(fatal)]) == fatal


@given(st.sampled_from(STEPS), KINDS, st.integers(2, 60), st.integers(1, 60))
def test_the_log_of_a_launcher_has_lines_of_other_ranks(form: str, kind: str, before: int, after: int) -> None:
    lines = [*_steps(form, 0, before), *_traceback(kind), *_steps(form, before, after)]
    assert _kind(lines, "launcher") == _kind(lines, "launcher-3") == kind


@pytest.mark.parametrize("size", [1, 400])
def test_long_lines_around_faults_take_no_long_time(size: int) -> None:
    lines = ["a" * 10_000, " " * 10_000, "1," * 5_000, "/" * 10_000, "█" * 10_000, "- " * 5_000, "disk-full"] * size
    assert _kind([*lines, "the end"]) == "disk-full"
