"""Features of optimizers: torch's, several at once, and state that is not in one tensor a parameter."""

from collections import ChainMap
from typing import Any

import torch
import torch.distributed as dist
from features import FEATURES, Made, adamw, feature, shard, trainer
from tiny_gpt import GPT
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


@feature
def muon(seed: int) -> Made:
    model = shard(GPT(seed))
    optimizer, _ = muon_and_adamw(model)
    return trainer(model, optimizer)


@feature
def adafactor(seed: int) -> Made:
    model = DistributedDataParallel(GPT(seed))
    return trainer(model, torch.optim.Adafactor(model.parameters(), lr=1e-2), clips=False)


def muon_and_adamw(model: nn.Module) -> Any:
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "blocks" in name]
    known = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in known]
    return torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=1e-2)


@feature
def two_optimizers(seed: int) -> Made:
    model = shard(GPT(seed))
    both = muon_and_adamw(model)
    parts, step = trainer(model, *both)
    return {**parts, "optimizer": list(both)}, step


class Both(torch.optim.Optimizer):
    """Two optimizers as one, whose state is a view of both."""

    def __init__(self, one: Any, two: Any) -> None:
        self.one, self.two, self.defaults = one, two, {}

    __hash__ = object.__hash__

    @property
    def param_groups(self) -> Any:
        return self.one.param_groups + self.two.param_groups

    @property
    def state(self) -> Any:
        return ChainMap(self.one.state, self.two.state)

    def step(self, closure: Any = None) -> None:
        self.one.step()
        self.two.step()

    def state_dict(self) -> Any:
        return {"one": self.one.state_dict(), "two": self.two.state_dict()}


@feature
def redundancy(seed: int) -> Made:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(GPT(seed))
    return trainer(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2))


class OwnMoments(torch.optim.Optimizer):
    """Momentum as in a script: in a list of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})
        self.moments = [torch.zeros_like(parameter) for parameter in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter, moment in zip(self.param_groups[0]["params"], self.moments, strict=True):
            moment.lerp_(parameter.grad, 0.1)
            parameter.sub_(moment * 1e-2)


def _sharded(seed: int, make: Any) -> Made:
    model = shard(GPT(seed))
    return trainer(model, make(model))


def _own_moments(seed: int) -> Made:
    model = GPT(seed)
    return trainer(model, OwnMoments(model.parameters()))


FEATURES |= {
    "fused": lambda seed: _sharded(seed, lambda model: adamw(model, fused=True)),
    "tensor_lr": lambda seed: _sharded(
        seed, lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), foreach=False)
    ),
    "sgd": lambda seed: _sharded(seed, lambda model: torch.optim.SGD(model.parameters(), lr=1e-2)),
    "wrapped_optimizers": lambda seed: _sharded(seed, lambda model: Both(*muon_and_adamw(model))),
    "own_moments": _own_moments,
}


class Shampoo(torch.optim.Optimizer):
    """Kronecker factors of other shapes than the parameter, whole on each rank: in its state, or in containers."""

    def __init__(self, parameters: Any, form: str) -> None:
        super().__init__(parameters, {"lr": 1e-2})
        self.form = form

    def begun(self, parameter: Any) -> Any:
        factors = {"L": torch.eye(parameter.shape[0]), "R": torch.eye(parameter.shape[1])}
        if self.form == "nested":
            return {"block_0": {"factors": factors, "step": 0}}
        return {"factors": [(factors["L"], factors["R"])], "step": 0}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            grad = parameter.grad
            full = grad.full_tensor() if isinstance(grad, DTensor) else grad
            if parameter.dim() == 2:
                state = self.state[parameter]
                if not state:
                    state |= self.begun(parameter)
                inner = state.get("block_0", state)
                held = inner["factors"]
                left, right = held[0] if isinstance(held, list) else (held["L"], held["R"])
                inner["step"] += 1
                left.add_(full @ full.T)
                right.add_(full.T @ full)
                full = (full / left.diagonal().sqrt()[:, None] / right.diagonal().sqrt()) / inner["step"]
            if isinstance(parameter, DTensor):
                full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.add_(full, alpha=-self.param_groups[0]["lr"])


def _shampoo(seed: int, form: str, sharded: bool) -> Made:
    model = shard(GPT(seed)) if sharded else GPT(seed)
    return trainer(model, Shampoo(model.parameters(), form), clips=False)


FEATURES |= {
    "shampoo_nested": lambda seed: _shampoo(seed, "nested", True),
    "shampoo_lists": lambda seed: _shampoo(seed, "lists", True),
    "plain_shampoo_nested": lambda seed: _shampoo(seed, "nested", False),
}


class Opaque(torch.Tensor):
    """A tensor without bytes of its own, which nothing takes apart."""

    @staticmethod
    def __new__(cls: Any, codes: torch.Tensor, *_: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, *_: Any) -> None:
        self.codes = codes

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{cls.__name__} dispatch: {function}")


class Packed(Opaque):
    """As torchao's quantized states: codes, a scale for each block of a rank's part, and their original type."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, kind: torch.dtype) -> None:
        self.codes, self.scales, self.kind = codes, scales, kind

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scales"], [self.kind]

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["codes"], inner["scales"], *context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.view.default and tuple(args[1]) == tuple(args[0].shape):
            return cls(args[0].codes, args[0].scales, args[0].kind)  # DTensor needs this of its local tensor.
        return super().__torch_dispatch__(function, types, args, kwargs)

    def values(self) -> torch.Tensor:
        return (self.codes.flatten().view(torch.int8).to(self.kind).view(self.scales.numel(), -1) * self.scales).view(
            self.codes.shape
        )

    @classmethod
    def of(cls, values: torch.Tensor) -> Any:
        blocks = values.reshape(values.shape[0] if values.dim() else 1, -1)
        scales = blocks.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        return cls((blocks / scales).round().to(torch.int8).view(torch.uint8).view(values.shape), scales, values.dtype)


class Quantized(torch.optim.SGD):
    """Momentum in eight bits, with a scale for each row of a rank's part."""

    form: Any = Packed

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            local = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
            state = self.state[parameter]
            held = state.get("momentum")
            held = held.to_local() if isinstance(held, DTensor) else held
            moment = local + (0.9 * held.values() if isinstance(held, Packed) else 0.0)
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).sub_(moment, alpha=1e-2)
            packed = self.form.of(moment) if self.form is Packed else self.form(moment)
            if isinstance(parameter, DTensor):
                packed = DTensor.from_local(
                    packed,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            state["momentum"], state["step"] = packed, state.get("step", 0) + 1


class Hidden(Quantized):
    form = Opaque


def _quantized(seed: int, kind: Any = Quantized) -> Made:
    model = shard(GPT(seed, width=36)) if dist.is_initialized() else GPT(seed, width=36)
    return trainer(model, kind(model.parameters(), lr=1e-2))


FEATURES |= {"quantized": _quantized, "opaque": lambda seed: _quantized(seed, Hidden)}
