"""Which elements of which parameter this rank holds in DeepSpeed's flat buffers, without gathering any.

Names and global indices are those of the parameters as the model has them; alignment padding is in no piece.
ZeRO 1 and 2 cut one flat buffer per parameter group into as many parts as there are ranks, ZeRO 3 each parameter.
https://www.deepspeed.ai/tutorials/zero/
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from m5ws.training.backend import Piece, Span

# What torch.compile and activation checkpointing put into the path of a parameter.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class Fragment:
    """`size` elements at `offset` of the flat fp32 tensor `flat`: a parameter's global indices from `start` on.

    `padding` more elements follow that belong to no parameter.
    """

    name: str
    flat: torch.Tensor
    offset: int
    start: int
    size: int
    padding: int = 0

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this fragment of a tensor laid out as `flat`."""
        return flat.detach()[self.offset : self.offset + self.size]


def names(module: torch.nn.Module) -> dict[int, str]:
    """Return each parameter's name in the model without its wrappers, by the parameter's identity."""
    return {id(parameter): unwrapped(path) for path, parameter in module.named_parameters()}


def unwrapped(path: str) -> str:
    """Return a parameter's path without its wrappers."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPED)


def fragments(optimizer: Any, known: dict[int, str]) -> Iterator[Fragment]:
    """Yield what this rank holds of each parameter in a ZeRO optimizer's fp32 buffers."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return _by_parameter(optimizer, known)
    return _by_group(optimizer, known)


def groups(optimizer: Any, known: dict[int, str]) -> list[dict[str, tuple[int, ...]]]:
    """Return, for each of `flats`, the shapes of the parameters that lie in it on any rank, by name and in order."""
    for name in ("fp16_groups", "round_robin_bit16_groups", "bf16_groups"):
        if hasattr(optimizer, name):
            return [{known[id(one)]: _shape(one) for one in group} for group in getattr(optimizer, name)]
    return []


def _shape(parameter: Any) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def flats(optimizer: Any) -> list[torch.Tensor]:
    """Return a ZeRO optimizer's flat fp32 buffers, which are what its base optimizer's state is keyed by."""
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
        if hasattr(optimizer, name):
            return list(getattr(optimizer, name))
    return []


def _by_group(optimizer: Any, known: dict[int, str]) -> Iterator[Fragment]:
    """ZeRO 1 and 2 (and the bf16 optimizer): this rank's part of each group's parameters, one after the other."""
    for number, flat in enumerate(flats(optimizer)):
        size = flat.numel()
        begin = torch.distributed.get_rank(optimizer.real_dp_process_group[number]) * size
        for parameter, offset in _offsets(optimizer, number):
            first, last = max(offset, begin), min(offset + parameter.numel(), begin + size)
            if first < last:
                yield Fragment(known[id(parameter)], flat, first - begin, first - offset, last - first)


def _offsets(optimizer: Any, number: int) -> Iterator[tuple[torch.nn.Parameter, int]]:
    """Yield a group's parameters, in the order in which they lie in the flat buffer, and where each begins."""
    if hasattr(optimizer, "round_robin_bit16_groups"):
        yield from zip(
            optimizer.round_robin_bit16_groups[number], optimizer.round_robin_bit16_offsets[number], strict=True
        )
        return
    offset = 0
    for parameter in optimizer.bf16_groups[number]:
        yield parameter, offset
        offset += parameter.numel()


def _by_parameter(optimizer: Any, known: dict[int, str]) -> Iterator[Fragment]:
    """ZeRO 3: an equal part of each parameter on each rank, the last ones padded."""
    for group in optimizer.fp16_groups:
        for parameter in group:
            number, offset, partition = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start, size = _part(parameter, partition)
            flat = optimizer.fp32_partitioned_groups_flat[number]
            yield Fragment(known[id(parameter)], flat, offset, start, size, partition - size)


def _part(parameter: Any, partition: int) -> tuple[int, int]:
    """Return where this rank's part of a ZeRO 3 parameter begins, and how many of its elements are not padding."""
    start = int(parameter.ds_zero_partition_rank) * partition
    return start, max(0, min(partition, parameter.ds_numel - start))


def parameter_pieces(module: torch.nn.Module) -> Iterator[Piece]:
    """Yield the parameters that the model computes with: whole on every rank, or this rank's part (ZeRO 3)."""
    for path, parameter in module.named_parameters():
        name = f"model.{unwrapped(path)}"
        if not hasattr(parameter, "ds_tensor"):
            yield Piece(name, parameter.detach(), copy="replica")
            continue
        start, size = _part(parameter, parameter.ds_tensor.ds_numel)
        if size:
            yield Piece(name, parameter.ds_tensor.detach().view(-1)[:size], Span(start))


def clear_padding(optimizer: Any, module: torch.nn.Module, known: dict[int, str]) -> None:
    """Zero what ZeRO 3 pads its parts with: it is memory as it was found, and would be in every checkpoint."""
    for parameter in module.parameters():
        if hasattr(parameter, "ds_tensor"):
            _, size = _part(parameter, parameter.ds_tensor.ds_numel)
            parameter.ds_tensor.data.view(-1)[size:].zero_()
    for fragment in fragments(optimizer, known):
        end = fragment.offset + fragment.size
        state = optimizer.optimizer.state.get(fragment.flat, {}).values()
        for flat in (fragment.flat, *state):
            if fragment.padding and isinstance(flat, torch.Tensor) and flat.shape == fragment.flat.shape:
                flat.data[end : end + fragment.padding].zero_()
