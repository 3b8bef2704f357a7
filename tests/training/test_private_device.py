"""Checkpoints move between the CPU and a device that torch has by an extension, in ranks of their own.

Such a device has no collectives, so no ranks train on it together with DDP: two ranks train on the CPU.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from m5ws.records.base import Digest
from m5ws.records.ledger import CheckpointPublished
from tests.support.devices import private_device

pytestmark = pytest.mark.long

SCRIPT = str(Path(__file__).parent / "scripts" / "other_device.py")
Train = Callable[..., Any]


@pytest.fixture(scope="session")
def library() -> Path:
    return private_device.build()


@pytest.fixture
def train(runner: Any, library: Path) -> Train:
    """Train six steps on a device; a training on the CPU does not know the other device."""

    def run(device: str, **more: Any) -> Any:
        attempt = runner(SCRIPT, device, "6", *([str(library)] if device == "private" else []), **more)
        assert attempt.status == 0, attempt.log()
        return attempt

    return run


def checkpoint(attempt: Any, step: int) -> Digest:
    published: list[CheckpointPublished] = attempt.of(CheckpointPublished)
    return next(event.checkpoint for event in published if event.step == step)


def state(attempt: Any, step: int) -> dict[str, tuple[str, torch.Tensor]]:
    """Return the state with which the next step began: the device and the values of each tensor by name."""
    loaded: dict[str, tuple[str, torch.Tensor]] = torch.load(attempt.directory / "work" / f"after-{step}.pt")
    return loaded


def check_loaded(first: Any, second: Any, device: str) -> None:
    """Check that the second attempt began with the first's state after step 2, with its tensors on a device."""
    saved, loaded = state(first, 2), state(second, 2)
    assert saved.keys() == loaded.keys() and any("exp_avg" in name for name in loaded)
    for name, (place, values) in loaded.items():
        assert place == ("cpu" if name.endswith(".step") else device), name
        assert values.dtype == saved[name][1].dtype and torch.equal(values, saved[name][1]), name
    assert second.steps(0).keys() == {3, 4, 5, 6}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("private", "cpu", "generator private is left out: there is no such device"),
        ("cpu", "private", "generator private is seeded from the state of generator torch"),
    ],
    ids=["from the device", "to the device"],
)
def test_a_checkpoint_continues_on_another_device(train: Train, before: str, after: str, words: str) -> None:
    first = train(before)
    second, third = (train(after, resume=checkpoint(first, 2)) for _ in range(2))
    check_loaded(first, second, after)
    assert f"the checkpoint was made on another device: {words}" in second.notices("resume-limit")
    assert second.steps(0) == third.steps(0) != {step: first.steps(0)[step] for step in range(3, 7)}


def test_a_resume_on_the_device_of_the_checkpoint_is_exact(train: Train) -> None:
    first = train("private")
    second = train("private", resume=checkpoint(first, 2))
    check_loaded(first, second, "private")
    assert second.steps(0) == {step: first.steps(0)[step] for step in range(3, 7)}
    assert second.contents[6] == first.contents[6]
    assert not any("another device" in text for text in second.notices("resume-limit"))


def test_a_checkpoint_of_two_ranks_continues_on_one_rank_with_a_device(train: Train) -> None:
    first = train("cpu", ranks=2)
    second = train("private", resume=checkpoint(first, 2))
    check_loaded(first, second, "private")
    assert any("was made by 2 ranks" in text for text in second.notices("resume-limit"))
