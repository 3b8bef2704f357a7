"""Traces of two replays, recorded by real runs of tests/flows/test_explain.py, and judged without running them again.

If the format of traces changes, record them again: `make test-services ARGS="tests/flows/test_explain.py
--update-golden"`.
"""

from pathlib import Path

import msgspec
import pytest

from m5ws.records.explanation import Cause, FirstDifference
from m5ws.reproduce.explain import causes, locate
from m5ws.reproduce.explain.causes import Evidence
from m5ws.runs.history import History

FOLDER = Path(__file__).parents[2] / "data" / "traces"


class Expected(msgspec.Struct, frozen=True):
    """The result for a changed setting: phase, module, quantity and step of the first difference; the causes."""

    change: str
    place: tuple[str, str | None, str, int]
    causes: tuple[str, ...]


EXPECTED = {
    "dropout": Expected(
        "dropout_1=0.3", ("forward", "blocks.1.drop", "output 0", 1), ("module setting", "recorded change")
    ),
    "scale": Expected("scale=1.25", ("forward", "blocks.1", "input 0", 1), ("recorded change",)),
    "gradient": Expected("gradient=1.5", ("backward", "blocks.1", "gradient 0", 1), ("recorded change",)),
    "flip_step": Expected("flip_step=6", ("state", "blocks.1.up", "parameter weight", 6), ("recorded change",)),
    "draw_step": Expected(
        "draw_step=3", ("random numbers", "", "generator torch", 3), ("random numbers", "recorded change")
    ),
    "order": Expected("order=turned", ("batch", None, "batch", 1), ("data order", "recorded change")),
}


class Recorded(msgspec.Struct, frozen=True):
    """The traced steps, and all evidence that was compared."""

    first: int
    last: int
    evidence: Evidence

    def judged(self) -> tuple[FirstDifference | None, tuple[Cause, ...]]:
        """Return the place and its causes, from the recorded evidence alone."""
        place = locate.first(self.evidence.one, self.evidence.two, range(self.first, self.last + 1))
        if place is None:
            return None, ()
        return place, causes.find_causes(msgspec.structs.replace(self.evidence, place=place))


def load(name: str) -> Recorded:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Recorded)


class Recorder:
    """Records the evidence passed to `causes.find_causes` in a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked: list[Evidence] = []
        find = causes.find_causes

        def kept(evidence: Evidence) -> tuple[Cause, ...]:
            self._asked.append(evidence)
            return find(evidence)

        monkeypatch.setattr(causes, "find_causes", kept)

    def write(self, name: str, first: int, last: int) -> None:
        """Write the last evidence, with the traced steps."""
        FOLDER.mkdir(exist_ok=True)
        evidence = self._asked[-1]
        for look in (evidence.one, evidence.two):
            _keep_states(look.history, first, last)
        _keep_states(evidence.recorded, first, last)
        (FOLDER / f"{name}.json").write_bytes(msgspec.json.encode(Recorded(first, last, evidence)) + b"\n")


def _keep_states(history: History, first: int, last: int) -> None:
    """Drop the states except the states before and after the traced steps. They are most of a history's bytes."""
    for rank, states in history.states.items():
        history.states[rank] = {step: state for step, state in states.items() if first - 1 <= step <= last}
