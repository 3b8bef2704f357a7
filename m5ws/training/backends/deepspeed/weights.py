"""The weights and moments of a DeepSpeed checkpoint by the model's own names, located without reading a byte of them.

ZeRO 1 and 2 put each group's parameters one after another in one buffer, cut into a part per rank. ZeRO 3 cuts each
parameter, and pads its last parts. Weights are the fp32 masters, as in DeepSpeed's zero_to_fp32; frozen parameters have
their stored values. https://www.deepspeed.ai/tutorials/zero/
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.checkpoint import Content, Tensor
from m5ws.repository import contents
from m5ws.repository.objects import Objects
from m5ws.repository.tensors import Box, Layout, item_bytes, layout
from m5ws.training.backends.tensor_names import unwrapped
from m5ws.training.compat import zero_files
from m5ws.training.state import plain_state
from m5ws.training.state.plain_state import RestoreError

_KIND = "m5ws.kind"

_Span = tuple[int, int, Tensor, int]
"""Elements of a parameter: the first index, their number, the stored tensor, and the first element there."""


def consolidate(objects: Objects, content: Content) -> tuple[list[Layout], list[str], dict[str, str]]:
    """Return the layout of each tensor, weights before moments in the model's order; unnamed state; and tied weights.

    Weights are called `model.NAME`, moments `optimizer.state.NAME.KEY`. Raises RestoreError, CorruptObject.
    """
    with _in_format():
        files = _Files(objects, content)
        moments = [moment for trained in files.trained() for moment in trained.moments.values()]
        unnamed = ["the optimizer's step counts and learning rates"]
        if not files.optimizers:
            unnamed.append("the optimizer's moments, which without ZeRO have no names")
        return [*files.weights(), *moments], unnamed, files.tied


@dataclass(frozen=True)
class ZeroParameter:
    """A parameter of the optimizer: its name with its wrappers, and the layouts of its state.

    `group` is its place among the flat buffers; `moments` are by the optimizer's keys, such as `exp_avg`.
    """

    name: str
    group: int
    weight: Layout
    moments: Mapping[str, Layout]


@dataclass(frozen=True)
class ZeroShards:
    """A ZeRO checkpoint by the model's own names; `frozen` are ZeRO 3's parameters that are not trained."""

    stage: int
    trained: tuple[ZeroParameter, ...]
    frozen: tuple[Layout, ...]


def load_shards(objects: Objects, content: Content) -> ZeroShards:
    """Return the layouts of ZeRO's masters and moments, by parameter. Raises RestoreError, CorruptObject."""
    with _in_format():
        files = _Files(objects, content)
        return ZeroShards(files.stage, tuple(files.trained()), tuple(files.frozen()))


@contextmanager
def _in_format() -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"the checkpoint is not in DeepSpeed's format: {error!r}") from error


class _Files:
    """The structures of DeepSpeed's files, and the tensors that they name."""

    def __init__(self, objects: Objects, content: Content) -> None:
        self._tensors = {tensor.name: tensor for tensor in contents.tensors(objects, content)}
        self._models = _by_rank(objects, content, zero_files.MODEL_FILE)
        self.optimizers = [
            state["optimizer_state_dict"] for state in _by_rank(objects, content, zero_files.OPTIMIZER_FILE)
        ]
        if not self._models:
            raise RestoreError("the checkpoint has none of DeepSpeed's model_states files")
        self._model = self._models[0]
        self.stage = int(self.optimizers[0]["zero_stage"]["value"]) if self.optimizers else 0
        self.tied: dict[str, str] = dict(self._model.get("shared_params") or {})

    # --- by name

    def weights(self) -> Iterator[Layout]:
        """Yield parameters, then frozen parameters and buffers."""
        trained = list(self.trained())
        yield from (parameter.weight for parameter in trained)
        yield from self.frozen()
        known = {parameter.name for parameter in trained}
        for name, value in _items(self._model["module"]).items():
            # ZeRO 3 has only buffers here: its parameters are stored in parts.
            is_whole = self.stage < 3 or name in self._model["buffer_names"]
            if is_whole and name not in known and name not in self.tied and _is_tensor(value):
                yield layout(self._record(value), f"model.{unwrapped(name)}")

    def trained(self) -> Iterator[ZeroParameter]:
        """Yield each parameter of the optimizer, in the order of its flat buffers."""
        masters = zero_files.masters_key(self.stage)
        for group, name, shape, place in self._places():
            flats = [self._record(state[masters][group]) for state in self.optimizers]
            weight = self._whole(f"model.{unwrapped(name)}", shape, self._spans(flats, place, math.prod(shape)))
            moments = {moment.name.rpartition(".")[2]: moment for moment in self._moments(group, name, shape, place)}
            yield ZeroParameter(name, group, weight, moments)

    def _moments(self, group: int, name: str, shape: tuple[int, ...], place: int) -> Iterator[Layout]:
        """Yield the optimizer state of a parameter in its shape; before the first step there is none."""
        states = [state[zero_files.base_key(self.stage)]["state"] for state in self.optimizers]
        for key, value in states[0].get(group, {}).items():
            # A count of steps is a number, or a tensor without dimensions.
            if _is_tensor(value) and self._record(value).shape:
                flats = [self._record(state[group][key]) for state in states]
                spans = self._spans(flats, place, math.prod(shape))
                yield self._whole(f"optimizer.state.{unwrapped(name)}.{key}", shape, spans)

    def _places(self) -> Iterator[tuple[int, str, tuple[int, ...], int]]:
        """Yield each trained parameter: its group, name and shape, and its offset in the group's flat buffers."""
        if not self.optimizers:
            return
        paddings = self.optimizers[0].get("param_alignment_paddings") or []
        for group, shapes in enumerate(self._model["param_shapes"]):
            place = 0
            for number, (name, shape) in enumerate(shapes.items()):
                yield group, name, tuple(shape), place
                size = math.prod(shape)
                padding = int(paddings[group][number]) if paddings else 0
                place += self._share(size) if self.stage == 3 else size + padding

    def frozen(self) -> Iterator[Layout]:
        """Yield ZeRO 3's parameters that are not trained: a part on each rank."""
        shapes = self._model.get("frozen_param_shapes") or {}
        for name, shape in shapes.items() if self.stage == 3 else ():
            flats = [self._record(model["frozen_param_fragments"][name]) for model in self._models]
            yield self._whole(f"model.{unwrapped(name)}", tuple(shape), self._spans(flats, 0, math.prod(shape)))

    # --- by offset

    def _share(self, size: int) -> int:
        return math.ceil(size / len(self._models))

    def _spans(self, flats: Sequence[Tensor], place: int, size: int) -> Iterator[_Span]:
        """Yield the spans of the ranks' flat buffers that contain the elements of a parameter."""
        if self.stage == 3:
            share = self._share(size)
            for rank, flat in enumerate(flats):
                count = max(0, min(share, size - rank * share))
                yield rank * share, count, flat, place
            return
        begin = 0
        for flat in flats:
            length = math.prod(flat.shape)
            first, last = max(place, begin), min(place + size, begin + length)
            yield first - place, max(0, last - first), flat, first - begin
            begin += length

    def _whole(self, name: str, shape: tuple[int, ...], spans: Iterator[_Span]) -> Layout:
        filled = [span for span in spans if span[1]]
        size = math.prod(shape)
        if sum(count for _, count, _, _ in filled) != size or any(
            count + at > math.prod(flat.shape) for _, count, flat, at in filled
        ):
            raise CorruptObject(f"the flat buffers of the checkpoint do not hold all of {name}")
        dtype = filled[0][2].dtype if filled else "float32"
        boxes = tuple(
            Box(offsets=(first,), sizes=(count,), parts=flat.shards[0].parts, skip_bytes=at * item_bytes(dtype))
            for first, count, flat, at in filled
        )
        return Layout(name=name, dtype=dtype, shape=shape, grid=(size,), boxes=boxes)

    def _record(self, marker: Mapping[str, str]) -> Tensor:
        return self._tensors[marker["name"]]


def _by_rank(objects: Objects, content: Content, pattern: re.Pattern[str]) -> list[dict[str, Any]]:
    """Return the structures of files whose names match, in order of ranks."""
    states = {}
    for name, blob in contents.blobs(objects, content).items():
        if (match := pattern.fullmatch(name)) is not None:
            states[int(match["rank"] or 0)] = plain_state.decode(codec.decode_plain(objects.read(blob)))
    return [states[rank] for rank in sorted(states)]


def _items(value: Any) -> Mapping[str, Any]:
    items: Mapping[str, Any] = value["items"] if value.get(_KIND) == "module" else value
    return items


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and value.get(_KIND) == "tensor"
