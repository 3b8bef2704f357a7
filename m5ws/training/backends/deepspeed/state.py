"""DeepSpeed's state dictionaries as plain data, with their tensors apart: an explicit codec, no pickle.

Invariant: equal states give equal bytes. Each tensor is stored by its elements, never as a view with its storage.
DeepSpeed's copy of the configuration, which contains paths, is left out: no loader reads it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from m5ws.records import codec
from m5ws.records.checkpoint import OwnTensor, Share, Tensor
from m5ws.records.tree import Slice
from m5ws.repository import contents
from m5ws.repository.objects import Objects, Reading, into, read_parts, write_parts
from m5ws.training.backends.base import Plain
from m5ws.training.compat import engine, modules
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import plain_state, tensor_bytes
from m5ws.training.state.plain_state import RestoreError, StateError

_TAG = "m5ws.kind"
_LEFT_OUT = ("ds_config",)
_Record = TypeVar("_Record", Tensor, OwnTensor)
_Make = Callable[[Tensor, list[Reading]], torch.Tensor]
_CLASSES = engine.state_classes()
_STAGE = engine.stage_class()


def parted(files: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, bytes], dict[str, torch.Tensor]]:
    """Return state dictionaries by file name as structures without tensors, and their live tensors by path.

    Raises StateError naming the path of a value that cannot be stored.
    """
    tensors: dict[str, torch.Tensor] = {}
    structures = {name: codec.encode_plain(_structure(name, state, tensors)) for name, state in files.items()}
    return structures, tensors


def rehearse(files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise StateError for state dictionaries that change when they are taken apart and rebuilt."""
    structures, tensors = parted(files)
    records = {name: _record(name, tensor) for name, tensor in tensors.items()}
    for name, structure in structures.items():
        state = plain_state.decode(codec.decode_plain(structure))
        rebuilt, _ = parted({name: _restored(state, records, lambda record: tensors[record.name])})
        if rebuilt[name] != structure:
            raise StateError(f"DeepSpeed's {name} changes when it is stored and read")


def write(objects: Objects, structures: Mapping[str, bytes], tensors: Mapping[str, torch.Tensor]) -> Share:
    """Make the result of `parted` durable; return its tensors, and the slice of each file's structure."""
    # In order of names: a loaded dictionary may have another order than the saved dictionary.
    parts = write_parts(objects, ((name, tensor_bytes.readable(tensors[name])) for name in sorted(tensors)))
    blobs = {name: _put(objects, structure) for name, structure in structures.items()}
    return contents.make_share((), [(_record(name, tensors[name]), parts[name]) for name in sorted(tensors)], blobs)


def read(objects: Objects, blob: Slice, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a stored state dictionary; its tensors are new, on the CPU.

    Raises NotFound, CorruptObject, RestoreError.
    """
    return _read(objects, blob, tensors, _tensor)


def read_numbers(objects: Objects, blob: Slice, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a stored state dictionary on the meta device; only tensors without dimensions are read.

    Raises NotFound, CorruptObject, RestoreError.
    """

    def made(record: Tensor, readings: list[Reading]) -> torch.Tensor:
        if not record.shape:
            return _tensor(record, readings)
        return torch.empty(record.shape, dtype=content_rules.dtype(record.name, record.dtype), device="meta")

    return _read(objects, blob, tensors, made)


def _read(objects: Objects, blob: Slice, tensors: Mapping[str, Tensor], make: _Make) -> dict[str, Any]:
    readings: list[Reading] = []
    structure = plain_state.decode(codec.decode_plain(objects.read(blob)))
    state = _restored(structure, tensors, lambda record: make(record, readings))
    if not isinstance(state, dict):
        raise RestoreError("a stored DeepSpeed state is not a dictionary")
    read_parts(objects, readings)
    return state


# --- encoding


def _structure(name: str, state: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> Plain:
    kept = {key: value for key, value in state.items() if key not in _LEFT_OUT}
    return plain_state.encode(_lifted(kept, name, tensors), name)


def _lifted(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` with a marker for each tensor and object; each tensor is added to `tensors` by its path."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise StateError(f"{path} is a tensor of layout {value.layout}, which m5ws cannot store")
        if path in tensors:
            raise StateError(f"two entries have the path {path}: m5ws cannot store both")
        tensors[path] = value.detach()
        return {_TAG: "tensor", "name": path}
    if type(value) in (list, tuple):
        return type(value)(_lifted(item, f"{path}/{i}", tensors) for i, item in enumerate(value))
    if type(value) in (dict, OrderedDict):
        items = ((key, _lifted(item, f"{path}/{_key(key, path)}", tensors)) for key, item in value.items())
        lifted, metadata = type(value)(items), modules.state_metadata(value)
        return lifted if metadata is None else {_TAG: "module", "items": lifted, "metadata": metadata}
    if isinstance(value, torch.dtype):
        return {_TAG: "dtype", "name": str(value).removeprefix("torch.")}
    if isinstance(value, _STAGE):
        return {_TAG: "stage", "value": int(value)}
    if type(value).__name__ in _CLASSES and type(value) is _CLASSES[type(value).__name__]:
        return {_TAG: type(value).__name__, "fields": _lifted(vars(value), path, tensors)}
    return value


def _key(key: object, path: str) -> str:
    if key == _TAG:
        raise StateError(f"{path} has a key {_TAG!r}, which is m5ws's own")
    return str(key)


def _record(name: str, tensor: torch.Tensor) -> OwnTensor:
    return OwnTensor(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _put(objects: Objects, data: bytes) -> Slice:
    digest = objects.put(data)
    return Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)


# --- decoding


def _restored(value: Any, tensors: Mapping[str, _Record], make: Callable[[_Record], torch.Tensor]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_restored(item, tensors, make) for item in value)
    if type(value) not in (dict, OrderedDict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return type(value)((key, _restored(item, tensors, make)) for key, item in value.items())
    if kind == "tensor":
        if (record := tensors.get(str(value.get("name")))) is None:
            raise RestoreError(f"a stored DeepSpeed state lacks its tensor {value.get('name')!r}")
        return make(record)
    if kind == "dtype":
        return content_rules.dtype("a stored DeepSpeed state", str(value.get("name")))
    if kind == "stage":
        return _STAGE(value["value"])
    if kind == "module":
        module = _restored(value["items"], tensors, make)
        modules.set_state_metadata(module, value["metadata"])
        return module
    if kind not in _CLASSES:
        raise RestoreError(
            f"a stored DeepSpeed state has an unknown kind {kind!r}", hint="A newer m5ws wrote the state."
        )
    instance: Any = object.__new__(_CLASSES[kind])
    vars(instance).update(_restored(value["fields"], tensors, make))
    return instance


def _tensor(record: Tensor, readings: list[Reading]) -> torch.Tensor:
    """Return an empty tensor, and add the readings that fill it to `readings`. Raises CorruptObject."""
    (shard,) = record.shards
    content_rules.check_shard(record, shard)
    tensor = torch.empty(record.shape, dtype=content_rules.dtype(record.name, record.dtype))
    if shard.parts:
        readings += into(shard.parts, tensor.view(-1).view(torch.uint8).numpy().data, record.name)
    return tensor
