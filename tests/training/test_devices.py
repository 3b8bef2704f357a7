"""A checkpoint continues on another device: tensors follow the parameters, generators a documented rule."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from m5ws.records.ledger import CheckpointPublished
from m5ws.training.backends import layouts
from m5ws.training.state import rng


class Device:
    """The module `torch.cuda` with a generator on the CPU in place of the device's."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self._module = torch.cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def get_rng_state(self) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.generator.set_state(state)

    def manual_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def draw(self) -> float:
        return float(torch.rand((), generator=self.generator))


class Machine:
    """Plants a device named cuda into this process, and takes it out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.has_device = Device(), True
        monkeypatch.setattr(rng, "devices", lambda: ("cuda",) if self.has_device else ())
        monkeypatch.setattr(torch, "cuda", self.device)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with monkeypatch.context() as patched:
        yield Machine(patched)


def test_generators_of_absent_devices_are_left_out_and_of_new_devices_are_seeded() -> None:
    states = rng.capture({})
    with_device = states | {"cuda": states["torch"]}
    assert rng.on_device(states, ["cuda"], ()) == (states, {}, [])
    assert rng.on_device(with_device, ["cuda"], ("cuda",)) == (with_device, {}, [])
    kept, seeds, changes = rng.on_device(with_device, ["cuda"], ())
    assert (kept, seeds, changes) == (states, {}, ["generator cuda is left out: there is no such device"])
    kept, seeds, changes = rng.on_device(states, [], ("cuda",))
    assert kept == states and changes == ["generator cuda is seeded from the state of generator torch"]
    torch.rand(1)
    assert rng.on_device(states, [], ("cuda",))[1] == seeds != rng.on_device(rng.capture({}), [], ("cuda",))[1]


def test_a_checkpoint_continues_on_a_machine_with_another_device_and_a_notice_names_it(
    machine: Machine, in_process: Any, tiny_module: Any
) -> None:
    train = functools.partial(tiny_module.main, "single", 6, "exact")
    for had, has, words in ((True, False, "generator cuda is left out"), (False, True, "generator cuda is seeded")):
        machine.has_device = had
        first, error = in_process(train)
        assert error is None and ("cuda" in first.states(0)[3][1]) is had
        at = next(event for event in first.of(CheckpointPublished) if event.step == 2)
        machine.has_device = has
        seen = []
        for _ in range(2):
            second, error = in_process(train, resume=at.checkpoint)
            assert error is None
            assert any("another device" in text and words in text for text in second.notices("resume-limit"))
            assert second.steps(0).keys() == {3, 4, 5, 6}
            seen.append((second.steps(0), machine.device.draw() if has else None))
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("leaf", "parameter", "expected"),
    [
        (torch.zeros(3), torch.zeros(3), "parameter"),
        (torch.zeros(()), torch.zeros(3), "cpu"),
        (torch.zeros(3, device="meta"), torch.zeros(3, device="meta"), "parameter"),
        (torch.zeros((), device="meta"), torch.zeros(3, device="meta"), "parameter"),
        (torch.zeros(3), torch.zeros(3, device="meta"), "cpu"),
    ],
    ids=["moments", "a step", "moments on a device", "a step on a device", "offloaded moments"],
)
def test_a_leaf_follows_its_parameter_to_another_device_unless_it_was_apart(
    leaf: torch.Tensor, parameter: torch.Tensor, expected: str
) -> None:
    assert layouts.device(leaf, parameter) == expected
