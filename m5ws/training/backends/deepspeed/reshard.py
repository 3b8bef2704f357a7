"""A ZeRO checkpoint on another number of ranks: the files that this rank would have saved, had it been among so many.

ZeRO's buffers are cut for one number of ranks. What is stored of them is known by parameter (`deepspeed_weights`), so
each rank reads just the elements that it holds now; DeepSpeed then loads its files as any others.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.repository.objects import Objects
from m5ws.repository.tensors import Layout, Parts, Reader
from m5ws.training.backends.base import Plain
from m5ws.training.backends.deepspeed import checkpoint_engine
from m5ws.training.backends.deepspeed import layout as deepspeed_layout
from m5ws.training.backends.deepspeed import state as deepspeed_state
from m5ws.training.backends.deepspeed import weights as deepspeed_weights
from m5ws.training.backends.deepspeed.layout import Fragment
from m5ws.training.compat import zero as internals
from m5ws.training.compat import zero_files
from m5ws.training.state.plain_state import RestoreError

_OTHER_MODEL = "The model, or which parameters the optimizer has, differs from when the checkpoint was made."
_READ_BYTES = 64 * 2**20
_THREADS = 8

Files = dict[str, dict[str, Any]]


def hidden(objects: Objects, content: Content) -> Mapping[str, Plain]:
    """Return what DeepSpeed hides, as rank 0 saved it: of CPUAdam's products it is the same on all ranks.

    Raises NotFound, CorruptObject.
    """
    found = codec.decode_plain(objects.read(content.ranks[0])) if content.ranks else None
    if not isinstance(found, dict) or not isinstance(found.get("backend"), dict):
        raise CorruptObject("the checkpoint has no state of its first rank")
    backend: Mapping[str, Plain] = found["backend"]
    return backend


def files(engine: Any, objects: Objects, content: Content, own: Files) -> Files:
    """Return what this rank's engine is to load; `own` is what it would save now (`deepspeed_engine.take`).

    Raises NotFound, CorruptObject, RestoreError.
    """
    tensors = {tensor.name: tensor for tensor in content.tensors}
    model, *optimizer = checkpoint_engine.wanted(engine)
    stored = deepspeed_state.read(objects, content.blobs[_first(model)], tensors)
    stored["dp_world_size"] = engine.seq_dp_world_size
    if not optimizer:
        return {model: stored}
    numbers = deepspeed_state.read_numbers(objects, content.blobs[_first(optimizer[0])], tensors)
    state = _State(engine, deepspeed_weights.zero(objects, content), numbers["optimizer_state_dict"])
    with ThreadPoolExecutor(_THREADS) as pool:
        reads = _Reads(Parts(objects), pool)
        stored |= state.model(own.get(model, {}), reads)
        zero = state.optimizer(own[optimizer[0]]["optimizer_state_dict"], reads)
        reads.settle()
    return {model: stored, optimizer[0]: {**numbers, "optimizer_state_dict": zero}}


def wanted(engine: Any, rank: int, content: Content) -> list[str]:
    """Return the files of the checkpoint that a rank of another number needs: the first rank's, and buffers."""
    buffers = f"buffers-{rank}"
    names = [_first(name) for name in checkpoint_engine.wanted(engine)]
    # Of buffers that differed from rank to rank, a rank that was not there has the first rank's.
    return [*names, buffers if buffers in content.blobs else "buffers-0"]


def on_all_ranks(files: Files) -> set[str]:
    """Return the names of these files on each rank: DeepSpeed asks whether all are there, and reads its own."""
    ranks = range(torch.distributed.get_world_size())
    return {zero_files.RANK.sub(f"zero_pp_rank_{rank}", name) for rank in ranks for name in files}


def _first(name: str) -> str:
    return zero_files.RANK.sub("zero_pp_rank_0", name)


class _Reads:
    """Elements of stored tensors on their way into new ones, many at a time."""

    def __init__(self, parts: Parts, pool: ThreadPoolExecutor) -> None:
        self._parts = parts
        self._pool = pool
        self._jobs: list[Any] = []

    def begin(self, target: torch.Tensor, source: Layout, start: int) -> None:
        """Read elements from `start` on into a row of memory of the same type. Raises RestoreError."""
        if str(target.dtype) != f"torch.{source.dtype}":
            raise RestoreError(f"{source.name} is stored as {source.dtype} and is {target.dtype} now")
        memory, reader, first = target.view(torch.uint8).numpy().data, Reader(self._parts, source), start
        first *= source.item_bytes
        for begin in range(0, memory.nbytes, _READ_BYTES):
            piece = memory[begin : begin + _READ_BYTES]
            self._jobs.append(self._pool.submit(_fill, reader, piece, first + begin))

    def settle(self) -> None:
        """Wait for all. Raises NotFound, CorruptObject."""
        for job in self._jobs:
            job.result()


def _fill(reader: Reader, target: memoryview, first: int) -> None:
    target[:] = reader.read(first, first + target.nbytes)


class _State:
    """A stored ZeRO state, and the engine that it is to be cut for."""

    def __init__(self, engine: Any, zero: deepspeed_weights.Zero, numbers: Mapping[str, Any]) -> None:
        self._optimizer = engine.optimizer
        self._numbers = numbers
        self._zero = zero
        known = deepspeed_layout.names(engine.module)
        self._groups = deepspeed_layout.groups(self._optimizer, known)
        self._fragments = list(deepspeed_layout.fragments(self._optimizer, known))
        self._stored = {deepspeed_layout.unwrapped(one.name): one for one in zero.trained}
        _check_fit(
            {name: shape for group in self._groups for name, shape in group.items()},
            {name: one.weight.shape for name, one in self._stored.items()},
        )

    def model(self, own: Mapping[str, Any], reads: _Reads) -> dict[str, Any]:
        """Return what of the model's file is this rank's: ZeRO 3's part of what is not trained."""
        found = {key: own[key] for key in zero_files.OF_RANK if key in own}
        layouts = {one.name: one for one in self._zero.frozen}
        fragments = found.get("frozen_param_fragments") or {}
        rank = torch.distributed.get_rank()
        for name, present in fragments.items() if self._zero.stage == 3 else ():
            if (source := layouts.get(f"model.{deepspeed_layout.unwrapped(name)}")) is None:
                raise RestoreError(f"the checkpoint has no frozen parameter {name}", hint=_OTHER_MODEL)
            part = torch.zeros(present.shape, dtype=present.dtype)
            start = rank * part.numel()
            count = max(0, min(part.numel(), source.elements - start))
            reads.begin(part[:count], source, start)
            fragments[name] = part
        return found

    def optimizer(self, own: Mapping[str, Any], reads: _Reads) -> dict[str, Any]:
        """Return the optimizer's file: this rank's parts of masters and moments, and the stored numbers."""
        stage = zero_files.stage(own)
        weights, base = zero_files.masters_key(stage), zero_files.base_key(stage)
        flats = internals.flats(self._optimizer)
        kept = {key: value for key, value in self._numbers.items() if key not in zero_files.OF_LAYOUT}
        laid_out = {key: own[key] for key in zero_files.OF_LAYOUT if key in own}
        masters = [self._row(flat, lambda one: one.weight, reads) for flat in flats]
        numbers = self._numbers[base]
        states = {
            number: state
            for number, flat in enumerate(flats)
            if (state := self._state_of(number, flat, numbers["state"], reads))
        }
        groups = _settings(numbers["param_groups"], own[base]["param_groups"])
        return kept | laid_out | {weights: masters, base: {"state": states, "param_groups": groups}}

    def _state_of(
        self, number: int, flat: torch.Tensor, stored: Mapping[int, Mapping[str, Any]], reads: _Reads
    ) -> dict[str, Any]:
        """Return what the optimizer keeps of a flat buffer; counts are those of its first parameter."""
        name = next(iter(self._groups[number]))
        first = self._stored[name]
        found: dict[str, Any] = {}
        for key, value in stored.get(first.group, {}).items():
            moment = key in first.moments
            found[key] = self._row(flat, lambda one, key=key: one.moments[key], reads) if moment else _apart(value)
        return found

    def _row(self, flat: torch.Tensor, source: Any, reads: _Reads) -> torch.Tensor:
        """Return a row as long as a flat buffer with this rank's elements, and zeros where it has padding."""
        row = torch.zeros(flat.shape, dtype=flat.dtype)
        for fragment in self._of(flat):
            reads.begin(fragment.of(row), source(self._stored[fragment.name]), fragment.start)
        return row

    def _of(self, flat: torch.Tensor) -> Iterator[Fragment]:
        return (fragment for fragment in self._fragments if fragment.flat is flat and fragment.size)


def _apart(value: Any) -> Any:
    # A count that is a tensor must not be shared by buffers that count for themselves.
    return value.clone() if isinstance(value, torch.Tensor) else value


def _settings(stored: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the stored settings of each parameter group, with the parameters that it has now."""
    if len(stored) != len(own):
        raise RestoreError(
            f"the checkpoint has {len(stored)} parameter groups, and the optimizer has {len(own)}", hint=_OTHER_MODEL
        )
    return [{**settings, "params": now["params"]} for settings, now in zip(stored, own, strict=True)]


def _check_fit(present: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]) -> None:
    differing = sorted(name for name in present.keys() | stored.keys() if present.get(name) != stored.get(name))
    if differing:
        raise RestoreError(f"the checkpoint does not fit the model's {', '.join(differing[:5])}", hint=_OTHER_MODEL)
