"""Notices of an optimizer whose state a script did not restore."""

import pytest

from m5ws.records.ledger import Observation, State, Step
from m5ws.repository.repository import Repository
from m5ws.runs.resume_check import RepeatedSteps
from tests.support.records import planted

_RUN = "a" * 12
_DIGEST = "0" * 64


def _step(number: int, optimizer: str) -> Step:
    return Step(step=number, quantities={}, digests={f"{optimizer} settings": _DIGEST})


@pytest.mark.parametrize(
    ("optimizers", "resumed_after", "is_reported"),
    [
        (["optimizer"] * 6, 3, True),
        (["optimizer"] * 4 + ["optimizer2"] * 2, 4, False),
        (["optimizer"] * 4 + ["optimizer2"] * 2, 3, True),
        # A GAN: the next optimizer has done a step before.
        (["optimizer", "optimizer2"] * 3, 4, True),
        # The attempt before did not reach the next step, so that it is unknown whether its optimizer is new.
        (["optimizer"] * 4, 4, True),
    ],
)
def test_an_optimizer_without_state_is_reported_unless_a_stage_begins(
    repo: Repository, optimizers: list[str], resumed_after: int, is_reported: bool
) -> None:
    planted.run(repo, _RUN)
    planted.begin(repo, _RUN)
    steps = [_step(number, name) for number, name in enumerate(optimizers, 1)]
    trained = State(step=2, tensors={"model.w": "1", "optimizer.w.exp_avg": "2"}, generators={})
    planted.append(repo, _RUN, 1, "0", Observation(rank=0, after=0), *steps[:2], trained, *steps[2:])
    check = RepeatedSteps(repo, _RUN, 2)
    assert check.compare("0", Observation(rank=0, after=resumed_after)) == []
    restored = State(step=resumed_after, tensors={"model.w": "1"}, generators={}, restored=True)
    assert bool(check.compare("0", restored)) == is_reported
