"""A ZeRO checkpoint on another number of ranks: the files that this rank would have saved as one of that many ranks.

ZeRO's buffers are cut for one number of ranks. The stored elements are located by parameter (`weights`), so each rank
reads only the elements that it holds now. DeepSpeed then loads the files as usual.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.checkpoint import Content, Tensor
from m5ws.records.tree import Slice
from m5ws.repository import concurrency
from m5ws.repository.contents import Parts
from m5ws.repository.objects import Objects
from m5ws.repository.tensors import Layout, PartCache, TensorReader
from m5ws.training.backends.base import Plain
from m5ws.training.backends.deepspeed import checkpoint_engine
from m5ws.training.backends.deepspeed import layout as deepspeed_layout
from m5ws.training.backends.deepspeed import state as deepspeed_state
from m5ws.training.backends.deepspeed import weights as deepspeed_weights
from m5ws.training.backends.tensor_names import unwrapped
from m5ws.training.compat import zero as internals
from m5ws.training.compat import zero_files
from m5ws.training.state.plain_state import RestoreError

_OTHER_MODEL = "The model, or the optimizer's set of parameters, has changed since the checkpoint was saved."
_READ_BYTES = 64 * 2**20

Files = dict[str, dict[str, Any]]


class Stored(NamedTuple):
    """A checkpoint: the files that `required_files` names, and the tensors of the ranks that stored them."""

    objects: Objects
    content: Content
    blobs: Mapping[str, Slice]
    tensors: Mapping[str, Tensor]


def hidden(objects: Objects, parts: Parts) -> Mapping[str, Plain]:
    """Return the state that DeepSpeed hides, as rank 0 saved it: the beta powers are equal on all ranks.

    Raises NotFound, CorruptObject.
    """
    first = parts.share(0).state
    state = codec.decode_plain(objects.read(first)) if first is not None else None
    if not isinstance(state, dict) or not isinstance(state.get("backend"), dict):
        raise CorruptObject("the checkpoint has no state of its first rank")
    backend: Mapping[str, Plain] = state["backend"]
    return backend


def files(engine: Any, checkpoint: Stored, own: Files) -> Files:
    """Return the files that this rank's engine loads; `own` are the files that it would save now (`capture_files`).

    Raises NotFound, CorruptObject, RestoreError.
    """
    objects, content, blobs, tensors = checkpoint
    model, *optimizer = checkpoint_engine.required_files(engine)
    stored = deepspeed_state.read(objects, blobs[_first(model)], tensors)
    stored["dp_world_size"] = engine.seq_dp_world_size
    if not optimizer:
        return {model: stored}
    numbers = deepspeed_state.read_numbers(objects, blobs[_first(optimizer[0])], tensors)
    state = _State(engine, deepspeed_weights.load_shards(objects, content), numbers["optimizer_state_dict"])
    reads = _Reads(PartCache(objects))
    stored |= state.model(own.get(model, {}), reads)
    zero = state.optimizer(own[optimizer[0]]["optimizer_state_dict"], reads)
    reads.run()
    return {model: stored, optimizer[0]: {**numbers, "optimizer_state_dict": zero}}


def required_files(engine: Any, rank: int, content: Content) -> list[str]:
    """Return the files that a rank needs of another number's checkpoint: the first rank's, and buffers."""
    buffers = f"buffers-{rank}"
    names = [_first(name) for name in checkpoint_engine.required_files(engine)]
    # If buffers differed from rank to rank, a rank that did not exist gets the first rank's.
    return [*names, buffers if rank < content.world else "buffers-0"]


def on_all_ranks(files: Files) -> set[str]:
    """Return the names of these files on each rank: DeepSpeed checks that all exist, and reads its own."""
    ranks = range(torch.distributed.get_world_size())
    return {zero_files.RANK.sub(f"zero_pp_rank_{rank}", name) for rank in ranks for name in files}


def _first(name: str) -> str:
    return zero_files.RANK.sub("zero_pp_rank_0", name)


class _Reads:
    """Reads of elements of stored tensors into new tensors, all at once."""

    def __init__(self, parts: PartCache) -> None:
        self._parts = parts
        self._jobs: list[Callable[[], None]] = []

    def add(self, target: torch.Tensor, source: Layout, start: int) -> None:
        """Read elements from `start` on into one-dimensional memory of the same type. Raises RestoreError."""
        if str(target.dtype) != f"torch.{source.dtype}":
            raise RestoreError(f"{source.name} is stored as {source.dtype} and is {target.dtype} now")
        memory, reader = target.view(torch.uint8).numpy().data, TensorReader(self._parts, source)
        for begin in range(0, memory.nbytes, _READ_BYTES):
            piece = memory[begin : begin + _READ_BYTES]
            self._jobs.append(partial(_fill, reader, piece, start * source.item_bytes + begin))

    def run(self) -> None:
        """Do all reads. Raises NotFound, CorruptObject."""
        for _ in concurrency.for_each(lambda job: job(), self._jobs):
            pass


def _fill(reader: TensorReader, target: memoryview, first: int) -> None:
    target[:] = reader.read(first, first + target.nbytes)


class _State:
    """A stored ZeRO state, and the engine for which it is resharded."""

    def __init__(self, engine: Any, zero: deepspeed_weights.ZeroShards, numbers: Mapping[str, Any]) -> None:
        self._optimizer = engine.optimizer
        self._numbers = numbers
        self._zero = zero
        known = deepspeed_layout.names(engine.module)
        self._groups = deepspeed_layout.groups(self._optimizer, known)
        self._fragments = list(deepspeed_layout.fragments(self._optimizer, known))
        self._stored = {unwrapped(trained.name): trained for trained in zero.trained}
        _check_fit(
            {name: shape for group in self._groups for name, shape in group.items()},
            {name: trained.weight.shape for name, trained in self._stored.items()},
        )

    def model(self, own: Mapping[str, Any], reads: _Reads) -> dict[str, Any]:
        """Return this rank's part of the model's file: ZeRO 3's part of the frozen parameters."""
        state = {key: own[key] for key in zero_files.OF_RANK if key in own}
        layouts = {frozen.name: frozen for frozen in self._zero.frozen}
        fragments = state.get("frozen_param_fragments") or {}
        rank = torch.distributed.get_rank()
        for name, present in fragments.items() if self._zero.stage == 3 else ():
            if (source := layouts.get(f"model.{unwrapped(name)}")) is None:
                raise RestoreError(f"the checkpoint has no frozen parameter {name}", hint=_OTHER_MODEL)
            part = torch.zeros(present.shape, dtype=present.dtype)
            start = rank * part.numel()
            count = max(0, min(part.numel(), source.elements - start))
            reads.add(part[:count], source, start)
            fragments[name] = part
        return state

    def optimizer(self, own: Mapping[str, Any], reads: _Reads) -> dict[str, Any]:
        """Return the optimizer's file: this rank's parts of masters and moments, and the stored numbers."""
        stage = zero_files.stage(own)
        weights, base = zero_files.masters_key(stage), zero_files.base_key(stage)
        flats = internals.flat_buffers(self._optimizer)
        kept = {key: value for key, value in self._numbers.items() if key not in zero_files.OF_LAYOUT}
        laid_out = {key: own[key] for key in zero_files.OF_LAYOUT if key in own}
        masters = [self._row(flat, lambda trained: trained.weight, reads) for flat in flats]
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
        """Return the optimizer state of a flat buffer, with the counts of its first parameter."""
        name = next(iter(self._groups[number]))
        first = self._stored[name]
        state: dict[str, Any] = {}
        for key, value in stored.get(first.group, {}).items():
            if key in first.moments:
                state[key] = self._row(flat, lambda trained, key=key: trained.moments[key], reads)
            else:
                # A count that is a tensor must not be shared by buffers that count separately.
                state[key] = value.clone() if isinstance(value, torch.Tensor) else value
        return state

    def _row(self, flat: torch.Tensor, source: Any, reads: _Reads) -> torch.Tensor:
        """Return a tensor as long as a flat buffer with this rank's elements, and zeros in its padding."""
        row = torch.zeros(flat.shape, dtype=flat.dtype)
        for fragment in self._fragments:
            if fragment.flat is flat and fragment.size:
                reads.add(fragment.of(row), source(self._stored[fragment.name]), fragment.start)
        return row


def _settings(stored: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the stored settings of each parameter group, with its present parameters."""
    if len(stored) != len(own):
        raise RestoreError(
            f"the checkpoint has {len(stored)} parameter groups, and the optimizer has {len(own)}", hint=_OTHER_MODEL
        )
    return [{**settings, "params": now["params"]} for settings, now in zip(stored, own, strict=True)]


def _check_fit(present: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]) -> None:
    differing = sorted(name for name in present.keys() | stored.keys() if present.get(name) != stored.get(name))
    if differing:
        raise RestoreError(f"the checkpoint does not fit the model's {', '.join(differing[:5])}", hint=_OTHER_MODEL)
