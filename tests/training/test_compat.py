"""The internals of torch and DeepSpeed: each fact holds here, a false fact is named, and no other module uses them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.compat import cpu_adam, modules, schedules, tensors
from m5ws.training.compat.facts import Fact, UnsupportedVersion, require

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / "m5ws" / "training" / "compat"
TORCH_FACTS = (*tensors.TRACED, *modules.NAMED, *modules.TRACED, *modules.STATED, *schedules.MOVED)


# --- the facts


@pytest.mark.parametrize("fact", TORCH_FACTS, ids=lambda fact: fact.name)
def test_each_fact_holds_for_the_installed_version(fact: Fact) -> None:
    require([fact])


GONE = (
    (torch.utils._pytree, "tree_leaves", tensors.TRACED),
    (torch.utils._python_dispatch, "is_traceable_wrapper_subclass", tensors.TRACED),
    (torch.nn.Module, "_compiled_call_impl", modules.TRACED),
    (torch.optim.lr_scheduler.StepLR, "_get_closed_form_lr", schedules.MOVED),
)


@pytest.mark.parametrize(("owner", "name", "checked"), GONE, ids=[name for _, name, _ in GONE])
def test_a_missing_internal_is_named_with_the_version(
    owner: Any, name: str, checked: tuple[Fact, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(UnsupportedVersion) as caught:
        require(checked)
    assert name in str(caught.value) and f"torch {torch.__version__.partition('+')[0]}" in str(caught.value)
    assert "m5ws doctor" in caught.value.hint


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[torch.nn.Module]:
    """A model that is sharded over one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(3, 2)
        fully_shard(model, mesh=DeviceMesh("cpu", [0]))
        yield model
    finally:
        dist.destroy_process_group()


def test_a_session_of_a_sharded_model_checks_internals_before_training(
    sharded: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    TorchBackend(sharded, None)
    monkeypatch.delattr(torch.distributed.tensor._utils, "compute_local_shape_and_global_offset")
    with pytest.raises(UnsupportedVersion, match="compute_local_shape_and_global_offset"):
        TorchBackend(sharded, None)


def test_a_box_with_other_dimensions_is_detected(sharded: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (6,), (0,)

    monkeypatch.setattr(torch.distributed.tensor._utils, "compute_local_shape_and_global_offset", other)
    with pytest.raises(UnsupportedVersion, match="another form"):
        TorchBackend(sharded, None)


def test_a_session_checks_only_used_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed.tensor._utils, "compute_local_shape_and_global_offset")
    TorchBackend(torch.nn.Linear(1, 1), None)


# --- CPUAdam's arithmetic


class Operator:
    """CPUAdam's operator in Python: the change of the beta powers in a step, and an update that shows them."""

    def create_adam(self, *_: Any) -> None:
        self.betas, self.step, self.products = (np.float32(0), np.float32(0)), 0, [np.float32(1), np.float32(1)]

    def destroy_adam(self, number: int) -> None:
        del self.products

    def power(self, step: int) -> None:
        self.step, self.products = step, [np.power(beta, np.float32(step)) for beta in self.betas]

    def move(self, step: int, betas: tuple[np.float32, np.float32]) -> None:
        if betas != self.betas:
            self.betas = betas
            self.power(step)
        elif step == self.step + 1:
            self.multiply(step)
        elif step != self.step:
            self.power(step)

    def multiply(self, step: int) -> None:
        self.step = step
        self.products = [product * beta for product, beta in zip(self.products, self.betas, strict=True)]

    def adam_update(self, _: int, step: int, lr: float, beta1: float, beta2: float, *rest: Any) -> None:
        self.move(step, (np.float32(beta1), np.float32(beta2)))
        if rest[3].numel():
            rest[3].fill_(float(self.products[0]) + 2.0 * float(self.products[1]))


class RestartsAtAJump(Operator):
    """A jump restarts the powers, without `pow`."""

    def move(self, step: int, betas: tuple[np.float32, np.float32]) -> None:
        if betas == self.betas and step not in (self.step, self.step + 1):
            self.products = [np.float32(1), np.float32(1)]
            self.multiply(step)
        else:
            super().move(step, betas)


class CountsRepeats(Operator):
    """The same step a second time multiplies again, as before DeepSpeed 0.18.7."""

    def move(self, step: int, betas: tuple[np.float32, np.float32]) -> None:
        if betas == self.betas and step == self.step:
            self.multiply(step)
        else:
            super().move(step, betas)


def test_a_replay_of_the_products_is_checked_against_the_operator() -> None:
    assert cpu_adam.moves_as_replayed(Operator())


@pytest.mark.parametrize("changed", [RestartsAtAJump, CountsRepeats])
def test_other_arithmetic_in_the_operator_is_noticed(changed: type[Operator]) -> None:
    assert not cpu_adam.moves_as_replayed(changed())


# --- no other module uses internals


def outside() -> list[Path]:
    return [path for path in sorted((ROOT / "m5ws" / "training").rglob("*.py")) if COMPAT not in path.parents]


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def internals_of_deepspeed() -> frozenset[str]:
    """Names that `compat` reads from parameters, ZeRO optimizers and CPUAdam, and that have no other meaning."""
    trees = [ast.parse((COMPAT / name).read_text()) for name in ("zero.py", "cpu_adam.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    owners = {"parameter", "optimizer"}
    read = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners
    }
    named = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    public = {"data", "defaults", "numel", "optimizer", "parameters", "shape", "state"}
    return frozenset((read | {name for name in named if name.startswith(("ds_", "fp32_", "bf16_"))}) - public)


def accesses(path: Path, internals: frozenset[str]) -> Iterator[str]:
    """Yield private names of other objects, and internals of DeepSpeed, that a file reads; imports too."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            names = [node.attr] if node.attr in internals or (private(node.attr) and not own) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            given = [item.value for item in node.args if isinstance(item, ast.Constant)]
            names = [name for name in given if isinstance(name, str) and (private(name) or name in internals)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {"torch", "deepspeed"}:
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            names = [name for name in parts if private(name)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".") if private(part)]
        yield from (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}" for name in names)


def test_only_compat_reads_internals() -> None:
    internals = internals_of_deepspeed()
    assert {"ds_tensor", "grad_position", "ds_opt_adam", "fp32_partitioned_groups_flat"} <= internals
    found = [access for path in outside() for access in accesses(path, internals)]
    assert [access for access in found if not access.endswith(": _exit")] == []
