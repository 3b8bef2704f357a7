"""The elements of each parameter that this rank holds in DeepSpeed's flat buffers, without gathering any.

Names and global indices belong to the parameters in the model; alignment padding is in no piece. ZeRO 1 and 2 cut
one flat buffer per parameter group into one part per rank, ZeRO 3 cuts each parameter.
https://www.deepspeed.ai/tutorials/zero/
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from m5ws.training.backends.base import Piece, Span
from m5ws.training.backends.tensor_names import unwrapped
from m5ws.training.compat import zero


@dataclass(frozen=True)
class Fragment:
    """`size` elements at `offset` of the flat fp32 tensor `flat`: a parameter's global indices from `start` on.

    They are followed by `padding` elements that belong to no parameter.
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


def fragments(optimizer: Any, known: dict[int, str]) -> Iterator[Fragment]:
    """Yield the elements of each parameter that this rank holds in a ZeRO optimizer's fp32 buffers."""
    if zero.cuts_parameters(optimizer):
        return _by_parameter(optimizer, known)
    return _by_group(optimizer, known)


def groups(optimizer: Any, known: dict[int, str]) -> list[dict[str, tuple[int, ...]]]:
    """Return, for each of `zero.flat_buffers`, the names and shapes of all ranks' parameters in it, in order."""
    return [{known[id(item)]: zero.shape(item) for item in group} for group in zero.groups(optimizer)]


def _by_group(optimizer: Any, known: dict[int, str]) -> Iterator[Fragment]:
    """ZeRO 1 and 2 (and the bf16 optimizer): this rank's part of each group's parameters, one after another."""
    for number, flat in enumerate(zero.flat_buffers(optimizer)):
        size = flat.numel()
        begin = zero.group_rank(optimizer, number) * size
        for parameter, offset in zero.offsets(optimizer, number):
            first, last = max(offset, begin), min(offset + parameter.numel(), begin + size)
            if first < last:
                yield Fragment(known[id(parameter)], flat, first - begin, first - offset, last - first)


def _by_parameter(optimizer: Any, known: dict[int, str]) -> Iterator[Fragment]:
    """ZeRO 3: an equal part of each parameter on each rank, the last parts padded."""
    flats = zero.flat_buffers(optimizer)
    for group in zero.groups(optimizer):
        for parameter in group:
            number, offset, partition = zero.place(optimizer, parameter)
            start, size = _part(parameter, partition)
            yield Fragment(known[id(parameter)], flats[number], offset, start, size, partition - size)


def _part(parameter: Any, partition: int) -> tuple[int, int]:
    """Return the start of this rank's part of a ZeRO 3 parameter, and the number of its elements without padding."""
    start = zero.part_rank(parameter) * partition
    return start, max(0, min(partition, zero.elements(parameter) - start))


def parameter_pieces(module: torch.nn.Module) -> Iterator[Piece]:
    """Yield the parameters of the forward pass: whole on every rank, or this rank's part (ZeRO 3)."""
    for path, parameter in module.named_parameters():
        name = f"model.{unwrapped(path)}"
        if (part := zero.part(parameter)) is None:
            yield Piece(name, parameter.detach(), copy="replica")
            continue
        start, size = _part(parameter, zero.part_elements(parameter))
        if size:
            yield Piece(name, part.detach().view(-1)[:size], Span(start))


def zero_pieces(optimizer: Any, known: dict[int, str]) -> Iterator[Piece]:
    """Yield the fp32 parameters of a ZeRO optimizer, and the optimizer state of each, without padding."""
    for fragment in fragments(optimizer, known):
        if not fragment.size:
            continue
        span = Span(fragment.start)
        yield Piece(f"master.{fragment.name}", fragment.of(fragment.flat), span)
        for key, value in optimizer.optimizer.state.get(fragment.flat, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == fragment.flat.shape:
                yield Piece(f"optimizer.{fragment.name}.{key}", fragment.of(value), span)


def clear_padding(optimizer: Any, module: torch.nn.Module, known: dict[int, str]) -> None:
    """Set the padding of ZeRO 3's parts to zero: it is uninitialised memory, and would be in every checkpoint."""
    for parameter in module.parameters():
        if (part := zero.part(parameter)) is not None:
            _, size = _part(parameter, zero.part_elements(parameter))
            part.data.view(-1)[size:].zero_()
    for fragment in fragments(optimizer, known):
        end = fragment.offset + fragment.size
        state = optimizer.optimizer.state.get(fragment.flat, {}).values()
        for flat in (fragment.flat, *state):
            if fragment.padding and isinstance(flat, torch.Tensor) and flat.shape == fragment.flat.shape:
                flat.data[end : end + fragment.padding].zero_()
