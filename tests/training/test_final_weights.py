"""The weights at the end of a script are the weights that are alive, and none is kept alive for them."""

import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from m5ws.records.ledger import Observation, ScriptEnded
from m5ws.training.fingerprint import fingerprint
from m5ws.training.observation.final_weights import FinalWeights
from m5ws.training.observation.names import Names

SCRIPT = str(Path(__file__).parent / "scripts" / "ends.py")
MODEL = {"model.weight", "model.bias"}


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    sums = fingerprint.sums(tensors.values())
    return dict(sorted((name, f"{value:016x}") for name, value in zip(tensors, sums, strict=True)))


@pytest.mark.parametrize("deleted", list(itertools.product([False, True], repeat=3)))
def test_final_weights_read_live_objects_and_keep_no_object_alive(deleted: tuple[bool, bool, bool]) -> None:
    final, names = FinalWeights(), Names()
    model, weight = torch.nn.BatchNorm1d(3), torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.1)
    final.follow_module(model)
    final.follow_optimizer(optimizer, names, is_recorded=True)
    with torch.no_grad():
        model.weight.add_(1)
        model.running_mean = torch.ones(3)
        weight.mul_(2)
    expected = {f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    held: dict[str, Any] = {"model": model, "optimizer": optimizer, "weight": weight}
    alive = {name: weakref.ref(item) for name, item in held.items()}
    del model, optimizer, weight
    for name, is_deleted in zip(alive, deleted, strict=True):
        if is_deleted:
            del held[name]
    if "model" not in held:
        # The optimizer keeps parameters, under the names of their places.
        places = {
            f"optimizer.parameter.group0.{place}": 1.0 * torch.ones(3) * value for place, value in ((0, 2), (1, 0))
        }
        expected = places if "optimizer" in held else {}
    if "weight" in held or "optimizer" in held:
        expected["optimizer.parameter.group0.2"] = 2 * torch.ones(2)
    assert final.take(names) == digests(expected) and final.unread() == ()
    held.clear()
    assert all(ref() is None for ref in alive.values())


def test_optimizers_beside_the_recorded_parameters_are_read_or_listed() -> None:
    final, names = FinalWeights(), Names()
    model, beside = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    final.record(model.parameters())
    for module in (model, beside):
        final.follow_optimizer(torch.optim.SGD(module.parameters(), lr=0.1), names, is_recorded=False)
    assert final.take(names).keys() == {f"optimizer.parameter.group0.{place}" for place in (0, 1)}
    assert final.unread() == ()
    del beside, module
    assert final.take(names) == {} and final.unread() == ("SGD, 2 tensors, 12 elements",)


@pytest.mark.parametrize(
    ("word", "named", "unread"),
    [
        ("plain", MODEL, 0),
        ("average", MODEL | {"model2.module.weight", "model2.module.bias", "model2.n_averaged"}, 0),
        ("second", MODEL | {"optimizer2.parameter.group0.0"}, 0),
        ("second deleted", MODEL, 1),
        ("before", MODEL | {"optimizer.parameter.group0.0"}, 0),
        ("in a function", set(), 0),
        ("failed", None, 0),
    ],
)
def test_the_parameters_that_a_session_script_steps_are_counted_to_the_end(
    runner: Any, word: str, named: set[str] | None, unread: int
) -> None:
    runner.observe = True
    attempt = runner(SCRIPT, word)
    ends = [event for event in attempt.of(ScriptEnded) if isinstance(event, ScriptEnded)]
    assert [end.weights.keys() for end in ends] == ([named] if named is not None else [])
    assert sum(len(end.unread) for end in ends) == unread
    assert bool(attempt.of(Observation)) == (word == "before")


@pytest.mark.parametrize(("word", "limit"), [("pending", "gradients of optimizer 1"), ("group", "groups of 2, 2 ")])
def test_a_checkpoint_without_an_exact_resume_causes_a_notice_at_its_save(runner: Any, word: str, limit: str) -> None:
    runner.observe = True
    attempt = runner(SCRIPT, word)
    assert attempt.status == 0, attempt.log()
    limits = [event for event in attempt.notices("resume-limit") if "data loader" not in event]
    assert len(limits) == (1 if word == "group" else 2) and all(limit in message for message in limits)
