"""The weights at the end of a script are those that it leaves, wherever they are deleted; and none is kept alive."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from m5ws.training.fingerprint import fingerprint
from m5ws.training.observation import final_weights
from m5ws.training.observation.final_weights import FinalWeights
from m5ws.training.observation.names import Names


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    sums = fingerprint.sums(tensors.values())
    return dict(sorted((name, f"{value:016x}") for name, value in zip(tensors, sums, strict=True)))


def update(final: FinalWeights, module: torch.nn.Module | None, *optimizers: torch.optim.Optimizer) -> None:
    """Do a step: a forward pass, and the optimizers."""
    if module is not None:
        final.follow_module(module)
    final.begin_update()
    for optimizer in optimizers:
        final.follow_optimizer(optimizer)


@torch.no_grad()
def _change(model: torch.nn.BatchNorm1d) -> None:
    model.weight.add_(1)
    model.running_mean = torch.ones(3)
    model.bias = torch.nn.Parameter(torch.full((3,), 2.0))


@pytest.mark.parametrize("change", [lambda _: None, _change])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("is_in_cycle", [False, True])
def test_they_are_those_that_the_script_leaves(
    change: Callable[[torch.nn.BatchNorm1d], None], is_deleted: bool, is_in_cycle: bool
) -> None:
    final, model = FinalWeights(Names()), torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        update(final, model, optimizer)
    if is_in_cycle:
        model.__dict__["itself"] = model
    change(model)
    expected = digests({f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()})
    alive = weakref.ref(model.weight)
    if is_deleted:
        del model, optimizer
        gc.collect()
        assert alive() is None
    # A parameter that was replaced is still the optimizer's.
    found = final.take() or {}
    assert {name: value for name, value in found.items() if name.startswith("model.")} == expected
    assert len(found) == len(expected) + (change is _change)


def test_parameters_of_an_optimizer_without_a_module_count() -> None:
    final, weights = FinalWeights(Names()), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    update(final, None, optimizer)
    weights.data.add_(1)
    expected = digests({"optimizer.parameter.group0.0": weights.detach().clone()})
    alive = weakref.ref(weights)
    del optimizer, weights
    assert alive() is None and final.take() == expected


def test_weights_that_were_forgotten_among_many_modules_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_weights, "_KEPT", 4)
    final, modules = FinalWeights(Names()), [torch.nn.Linear(1, 1) for _ in range(6)]
    for module in modules:
        update(final, module)
    assert final.take() is None


class Wrapper(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner


def test_tensors_that_outlive_their_module_are_read_at_the_end() -> None:
    final, inner = FinalWeights(Names()), torch.nn.Linear(2, 2)
    wrapper = Wrapper(inner)
    update(final, wrapper)
    del wrapper
    inner.weight.data.add_(1)
    expected = {f"model.inner.{name}": tensor.clone() for name, tensor in inner.state_dict().items()}
    assert final.take() == digests(expected)


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("is_used_again", [False, True])
def test_a_part_that_was_replaced_is_not_kept_and_not_read(is_deleted: bool, is_used_again: bool) -> None:
    final, model = FinalWeights(Names()), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3))
    update(final, model)
    old = weakref.ref(model[1].weight)
    model[1] = torch.nn.Linear(2, 4)
    if is_used_again:
        update(final, model)
        assert old() is None
    expected = digests({f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()})
    if is_deleted:
        del model
    # Otherwise the part in place of the old one is unknown.
    assert final.take() == (expected if is_used_again or not is_deleted else None)


def test_an_optimizer_may_have_the_id_of_a_module_that_lost_a_part() -> None:
    final, weights, ids = FinalWeights(Names()), torch.ones(3, requires_grad=True), set[int]()
    for _ in range(1000):
        module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
        final.follow_module(module)
        module[0] = torch.nn.Linear(1, 1)
        ids.add(id(module))
        del module
        optimizer = torch.optim.SGD([weights], lr=0.1)
        final.follow_optimizer(optimizer)
        final.begin_update()
        if id(optimizer) in ids:
            break
    assert id(optimizer) in ids and final.take() is not None


class _Unwrapped(torch.Tensor):
    """A tensor whose class alone knows its values: they are one more than those in memory."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]
        return result.as_subclass(torch.Tensor) + 1 if function is torch.Tensor.detach else result


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_tensor_is_read_as_its_class_says(is_deleted: bool) -> None:
    final, model = FinalWeights(Names()), torch.nn.Linear(2, 2, bias=False)
    weight = model.weight.detach().clone()
    model._parameters["weight"] = weight.as_subclass(_Unwrapped)  # type: ignore[assignment]
    update(final, model)
    if is_deleted:
        del model
    assert final.take() == digests({"model.weight": weight + 1})


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_tensor_of_two_modules_has_the_name_in_the_one_that_was_used_last(is_deleted: bool) -> None:
    final, whole = FinalWeights(Names()), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for module in (whole[1], whole, whole):
        update(final, module)
    expected = digests({f"model2.{name}": tensor.clone() for name, tensor in whole.state_dict().items()})
    if is_deleted:
        del module, whole
    assert final.take() == expected


def test_weights_without_memory_are_unknown_and_modules_without_an_update_do_not_count() -> None:
    final, model = FinalWeights(Names()), torch.nn.Linear(2, 2)
    update(final, model)
    expected = digests({f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()})
    final.follow_module(torch.nn.Linear(3, 3))
    assert final.take() == expected
    update(final, model)
    model.weight.untyped_storage().resize_(0)
    assert final.take() is None


def test_weights_that_another_thread_deletes_are_unknown() -> None:
    final, held = FinalWeights(Names()), [torch.nn.Linear(2, 2)]
    update(final, held[0])
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert final.take() is None


def test_nothing_is_read_after_the_end() -> None:
    final, model = FinalWeights(Names()), torch.nn.Linear(2, 2)
    update(final, model)
    final.end()
    del model
    assert final.take() is None
