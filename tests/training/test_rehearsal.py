"""A save and a restore are rehearsed before they are needed: nothing changes, and state that cannot be restored is
named.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from m5ws.repository.repository import Repository
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.fingerprint import fingerprint
from m5ws.training.session import rehearsal
from m5ws.training.state import subclasses
from m5ws.training.state.plain_state import StateError
from tests.support.ranks import forks


class Keyed(torch.optim.SGD):
    """Keeps a tensor under any key."""

    key: object = "moment"

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter][self.key] = torch.ones_like(parameter)


def trained(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    optimizer = make(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("steps", [0, 1])
def test_a_rehearsal_changes_no_tensor_draws_nothing_and_stores_nothing(repo: Repository, steps: int) -> None:
    model, optimizer = trained(torch.optim.AdamW)
    if not steps:
        optimizer.state.clear()
    backend = TorchBackend(model, optimizer)
    held = {name: id(tensor) for values in optimizer.state.values() for name, tensor in values.items()}
    stored, drawn = list(repo.store.list("")), torch.get_rng_state()
    before = fingerprint.fingerprints(backend.tensors(), None).values
    backend.rehearse(repo.objects, None)
    assert fingerprint.fingerprints(backend.tensors(), None).values == before
    assert held == {name: id(tensor) for values in optimizer.state.values() for name, tensor in values.items()}
    assert list(repo.store.list("")) == stored and torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("key", [0, "a.b", "a[0]"])
def test_state_under_an_unstable_key_is_refused_with_the_name_of_its_parameter(repo: Repository, key: object) -> None:
    model, optimizer = trained(lambda parameters: Keyed(parameters, lr=0.1))
    backend = TorchBackend(model, optimizer)
    backend.rehearse(repo.objects, None)
    Keyed.key, before = key, Keyed.key
    try:
        optimizer.step()
    finally:
        Keyed.key = before
    with pytest.raises(StateError, match=r"0\.bias"):
        backend.rehearse(repo.objects, None)


def test_tensors_of_equal_layouts_on_all_ranks_are_planned_once(
    fork_parents: forks.ForkParents, tmp_path: Path
) -> None:
    script = str(Path(__file__).parent / "scripts" / "rehearsed.py")
    status, log = forks.run(fork_parents, script, directory=tmp_path, ranks=4)
    assert status == 0, log
    # Names of one half of the ranks count too.
    assert f"{3 * (8 + 2 * 2)} tensors are planned" in log
    assert sorted(line for line in log.splitlines() if "lacks" in line) == [
        f"rank {rank}: rank 3 lacks its part of rows.1" for rank in range(4)
    ], log


class Own:
    """A script's own object, which loads the result of `taken` from its state."""

    def __init__(self, taken: Callable[[Any], Any] = lambda value: value, **beside: Any) -> None:
        self.value, self.taken, self.beside, self.loads = 1, taken, beside, 0

    def state_dict(self) -> Any:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.loads += 1
        torch.rand(3)
        np.random.rand()
        self.value = self.taken(state["value"])


def rehearse(item: Any, *known: object) -> None:
    from m5ws.training.state import plain_state

    rehearsal.rehearse({"own": item}, {"own": plain_state.encode(item.state_dict(), "own")}, known)


def test_a_rehearsal_loads_state_into_copies_and_restores_generators() -> None:
    own, drawn, numbers = Own(), torch.get_rng_state(), repr(np.random.get_state())
    rehearse(own)
    assert own.loads == 0 and torch.equal(torch.get_rng_state(), drawn)
    assert repr(np.random.get_state()) == numbers
    model, optimizer = trained(torch.optim.AdamW)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    rehearse(scheduler, optimizer)
    assert scheduler.optimizer is optimizer
    rehearse(torch.optim.swa_utils.AveragedModel(model))
    rehearse(torch.amp.GradScaler("cpu"))


@pytest.mark.parametrize("taken", [lambda value: value + 1, lambda value: value["missing"], lambda value: {value}])
def test_an_object_that_does_not_restore_its_state_is_refused_by_name(taken: Callable[[Any], Any]) -> None:
    with pytest.raises(StateError, match="own"):
        rehearse(Own(taken))


def test_large_or_uncopyable_objects_are_not_rehearsed() -> None:
    large = torch.zeros(17 * 2**20)
    for beside in (np.zeros(65 * 2**20, dtype=np.uint8), large, threading.Lock(), list(range(30_000))):
        rehearse(Own(lambda value: value + 1, beside=beside))
    # Except the session's own.
    with pytest.raises(StateError):
        rehearse(Own(lambda value: value + 1, beside=large), large)


class Pair(torch.Tensor):
    """A tensor of two inner tensors, without bytes of its own."""

    @staticmethod
    def __new__(cls: Any, one: torch.Tensor, other: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, one.shape)

    def __init__(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.one, self.other = one, other

    def __tensor_flatten__(self) -> Any:
        return ["one", "other"], []

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["one"], inner["other"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's stub lacks the class
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


def test_a_tensor_subclass_is_split_and_joined_and_a_stored_name_imports_nothing() -> None:
    pair = Pair(torch.arange(3.0), torch.ones(2))
    parts = subclasses.parts(pair)
    assert parts is not None and parts.inner["one"] is pair.one and parts.kind == f"{__name__}:Pair"
    assert subclasses.join(parts).one is pair.one  # type: ignore[attr-defined]
    assert subclasses.parts(torch.ones(2)) is None and subclasses.parts(torch.nn.Parameter(torch.ones(2))) is None
    for kind in ("antigravity:Tensor", "os:system", "torch:Tensor", f"{__name__}:Own"):
        with pytest.raises(LookupError):
            subclasses.join(subclasses.TensorParts(kind, parts.inner, [], (3,), (1,), None))
