"""Internals of ZeRO: the flat fp32 buffers, the places of parameters in them, and the parts of ZeRO 3's parameters.

https://github.com/deepspeedai/DeepSpeed/tree/v0.19.8/deepspeed/runtime/zero
"""

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from m5ws.training.compat.facts import Fact

_FLATS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
_GROUPS = ("fp16_groups", "round_robin_bit16_groups", "bf16_groups")
_group_ranks: "WeakKeyDictionary[Any, dict[int, int]]" = WeakKeyDictionary()
"""This rank's places in the process groups of each optimizer."""


def flat_buffers(optimizer: Any) -> list[torch.Tensor]:
    """Return a ZeRO optimizer's flat fp32 buffers, the keys of its base optimizer's state."""
    return list(_first(optimizer, _FLATS))


def groups(optimizer: Any) -> list[list[torch.nn.Parameter]]:
    """Return the parameters in each of `flat_buffers` on any rank, in order."""
    return [list(group) for group in _first(optimizer, _GROUPS)]


def _first(optimizer: Any, names: Sequence[str]) -> Any:
    return next((getattr(optimizer, name) for name in names if hasattr(optimizer, name)), ())


def cuts_parameters(optimizer: Any) -> bool:
    """Return True for ZeRO 3, which cuts each parameter; the other stages cut a buffer of a whole group."""
    return hasattr(optimizer, "fp32_partitioned_groups_flat")


def group_rank(optimizer: Any, number: int) -> int:
    """Return this rank's place among the ranks over which a group's buffer is cut.

    It is kept, because a script may have destroyed its process groups when its final weights are read.
    """
    known = _group_ranks.setdefault(optimizer, {})
    if number not in known:
        known[number] = torch.distributed.get_rank(optimizer.real_dp_process_group[number])
    return known[number]


def offsets(optimizer: Any, number: int) -> Iterator[tuple[torch.nn.Parameter, int]]:
    """Yield a group's parameters in the order of the flat buffer, and the offset of each in elements.

    DeepSpeed from 0.19.7 can leave gaps between parameters, but not between parameters of its bf16 optimizer.
    """
    if hasattr(optimizer, "round_robin_bit16_offsets"):
        yield from zip(
            optimizer.round_robin_bit16_groups[number], optimizer.round_robin_bit16_offsets[number], strict=True
        )
        return
    offset = 0
    for parameter in _first(optimizer, ("round_robin_bit16_groups", "bf16_groups"))[number]:
        yield parameter, offset
        offset += parameter.numel()


def place(optimizer: Any, parameter: torch.nn.Parameter) -> tuple[int, int, int]:
    """Return, with ZeRO 3, the number of a parameter's flat buffer, the offset of its part there, and its length."""
    number, offset, partition = optimizer.grad_position[optimizer.get_param_id(parameter)]
    return number, offset, partition


def part(parameter: Any) -> torch.Tensor | None:
    """Return this rank's part of a parameter that ZeRO 3 has cut, padded; None for any other parameter."""
    return parameter.ds_tensor if hasattr(parameter, "ds_tensor") else None


def part_elements(parameter: Any) -> int:
    """Return the length of this rank's part, with its padding."""
    return int(parameter.ds_tensor.ds_numel)


def part_rank(parameter: Any) -> int:
    """Return this rank's place among the ranks over which a parameter is cut.

    DeepSpeed before 0.19.3 does not keep it. It is kept here, as process groups may be destroyed later.
    """
    if not hasattr(parameter, "ds_zero_partition_rank"):
        parameter.ds_zero_partition_rank = torch.distributed.get_rank(parameter.ds_process_group)
    return int(parameter.ds_zero_partition_rank)


def part_ranks(parameter: Any, default: int) -> int:
    """Return the number of ranks over which a parameter is cut, `default` if it is not cut."""
    return int(getattr(parameter, "ds_zero_partition_world_size", default))


def elements(parameter: Any) -> int:
    """Return the number of elements of a whole parameter that ZeRO 3 has cut."""
    return int(parameter.ds_numel)


def shape(parameter: Any) -> tuple[int, ...]:
    """Return the shape of the whole parameter."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def drop_second_copy(parameter: Any) -> None:
    """Release hpZ's second copy of a parameter, which DeepSpeed itself keeps for a frozen parameter."""
    if getattr(parameter, "ds_secondary_tensor", None) is not None:
        parameter.ds_secondary_tensor = None


def facts(optimizer: Any) -> Iterator[Fact]:
    """Yield the facts about a ZeRO optimizer of its stage, and its parameters."""
    yield Fact(
        "deepspeed", "flat fp32 buffers of ZeRO: " + ", ".join(_FLATS), lambda: _are_flat(flat_buffers(optimizer))
    )
    yield Fact("deepspeed", "parameter groups of ZeRO: " + ", ".join(_GROUPS), lambda: any(groups(optimizer)))
    yield Fact("deepspeed", "ZeroOptimizer.optimizer.state", lambda: optimizer.optimizer.state is not None)
    yield from _of_stage_3(optimizer) if cuts_parameters(optimizer) else _of_stages_1_and_2(optimizer)


def _are_flat(buffers: list[torch.Tensor]) -> bool:
    return bool(buffers) and all(buffer.ndim == 1 for buffer in buffers)


def _of_stages_1_and_2(optimizer: Any) -> Iterator[Fact]:
    def laid_out() -> bool:
        return any(list(offsets(optimizer, number)) for number in range(len(flat_buffers(optimizer))))

    yield Fact("deepspeed", "ZeroOptimizer.real_dp_process_group", lambda: group_rank(optimizer, 0) >= 0)
    yield Fact("deepspeed", "round_robin_bit16_groups, or bf16_groups", laid_out)


def _of_stage_3(optimizer: Any) -> Iterator[Fact]:
    def first() -> Any:
        return next((parameter for group in groups(optimizer) for parameter in group), None)

    def is_cut() -> bool:
        return part(first()) is not None and 0 <= elements(first()) <= part_elements(first()) * _ranks()

    yield Fact("deepspeed", "Parameter.ds_tensor.ds_numel and ds_numel", is_cut)
    yield Fact("deepspeed", "Parameter.ds_shape", lambda: first().ds_shape.numel() == elements(first()))
    yield Fact(
        "deepspeed", "Parameter.ds_zero_partition_rank, or ds_process_group", lambda: part_rank(first()) < _ranks()
    )
    yield Fact("deepspeed", "ZeroOptimizer.grad_position and get_param_id", lambda: len(place(optimizer, first())) == 3)


def _ranks() -> int:
    return torch.distributed.get_world_size()
