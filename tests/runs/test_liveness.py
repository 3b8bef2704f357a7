"""A run has ended when no attempt is alive, and its job begins no other attempt."""

from typing import Any

import pytest

from m5ws.records.failure import EndReason
from m5ws.runs import liveness
from m5ws.runs.state import AttemptState, RunState, Standing

_ENDS: dict[str, tuple[Standing, EndReason | None]] = {
    "finished": ("finished", None),
    "unsaved": ("unsaved", EndReason(kind="unsaved", problem="")),
    "failed": ("failed", EndReason(kind="ranks failed")),
    "node lost": ("failed", EndReason(kind="node lost", problem="")),
    "killed": ("failed", EndReason(kind="supervisor killed")),
    "warned": ("interrupted", EndReason(kind="stopped", signal="SIGUSR2")),
    "told to end": ("interrupted", EndReason(kind="stopped", signal="SIGTERM")),
    "cancelled": ("interrupted", EndReason(kind="cancelled", host="h")),
    "running": ("running", None),
}


@pytest.mark.parametrize(
    ("alive", "ended"),
    [
        (False, {*_ENDS} - {"running"}),
        (True, {"finished"}),
        (None, {*_ENDS} - {"running", "node lost", "killed", "warned"}),
    ],
)
def test_the_engine_decides_and_without_an_answer_the_last_end(
    monkeypatch: pytest.MonkeyPatch, alive: bool | None, ended: set[str]
) -> None:
    monkeypatch.setattr(liveness, "_job_is_alive", lambda *_: alive)
    nothing: Any = None
    found = {
        name
        for name, (standing, reason) in _ENDS.items()
        if liveness.has_ended(
            nothing, nothing, RunState(run="r", attempts=(AttemptState(attempt=1, standing=standing, reason=reason),))
        )
    }
    assert found == ended


@pytest.mark.parametrize(("alive", "has_ended"), [(True, False), (None, False), (False, True)])
def test_a_run_without_an_attempt_waits_for_its_job(
    monkeypatch: pytest.MonkeyPatch, alive: bool | None, has_ended: bool
) -> None:
    monkeypatch.setattr(liveness, "_job_is_alive", lambda *_: alive)
    nothing: Any = None
    assert liveness.has_ended(nothing, nothing, RunState(run="r")) is has_ended
