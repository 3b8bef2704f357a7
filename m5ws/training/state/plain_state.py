"""State of schedulers, loaders and generators as plain data, and back: an explicit codec, no pickle.

Only the types listed here can be stored. Any other type is an error that names its path, at the start of the training
and not at the first restore. Decoded values have the same types and bits. Only a plain dictionary with string keys is
decoded in the order of its keys (an OrderedDict keeps its own order).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from m5ws.errors import CorruptObject, M5Error
from m5ws.training.state import content_check, subclasses, tensor_bytes

Plain = Any
"""None, bool, int, float, str, bytes, list and dict with string keys: the types that `codec.encode_plain` accepts."""

_TAG = "!"
_INT64 = range(-(2**63), 2**64)


class StateError(M5Error):
    """Some of the training state cannot be stored exactly."""

    hint = "Give m5ws an object whose state_dict() holds numbers, text, bytes, lists, dictionaries, tensors and arrays."


class RestoreError(M5Error):
    """Restored state differs from the saved state, or does not fit the model."""

    exit_code = 3


Take = Callable[[str, torch.Tensor], bool]
"""Called with each tensor and its path. True: the tensor is stored elsewhere by that name, and only named here."""
Shard = Callable[[torch.Tensor, tuple[int, ...] | None], torch.Tensor]
"""Called with a tensor rebuilt from inner tensors, and the shape of the whole tensor if the tensor is a rank's part."""


def encode(value: object, path: str, take: Take | None = None) -> Plain:
    """Return `value` as plain data. Raises StateError naming the path of a value that cannot be stored."""
    if value is None or type(value) in (bool, float, bytes):
        return value
    if type(value) is str:
        return text(value, path)
    if type(value) is int:
        return value if value in _INT64 else {_TAG: "int", "hex": hex(value)}
    if type(value) is list:
        return [encode(item, f"{path}[{i}]", take) for i, item in enumerate(value)]
    if type(value) is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {text(key, f"a key of {path}"): encode(item, f"{path}.{key}", take) for key, item in value.items()}
    if take is not None and isinstance(value, torch.Tensor):
        if (parts := subclasses.parts(value)) is not None:
            return _encode_parts(parts, path, take)
        if take(path, value):
            return {_TAG: "leaf", "name": path}
    tagged = _ENCODERS.get(type(value))
    if tagged is None and isinstance(value, torch.Tensor):
        tagged = _tensor
    if tagged is None and isinstance(value, np.generic) and not value.dtype.hasobject:
        tagged = _scalar
    if tagged is None:
        raise StateError(f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which m5ws cannot store")
    return tagged(value, path, take)


def text(value: str, path: str) -> str:
    """Return a text. Raises StateError if it is not Unicode, as are names of files that are not UTF-8."""
    if not value.isascii() and value.encode(errors="replace").decode() != value:
        raise StateError(f"{path} is the text {value[:200]!r}, which is not Unicode: m5ws cannot store it")
    return value


def decode(value: Plain, give: Callable[[str], torch.Tensor] | None = None, shard: Shard | None = None) -> Any:
    """Return the value that was encoded; `give` returns the tensor of a stored name.

    Raises RestoreError for data that no `encode` returns.
    """
    try:
        return _decoded(value if give is None else _given(value, give, shard))
    except (AttributeError, CorruptObject, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise RestoreError(f"stored state cannot be decoded: {type(error).__name__}: {error}") from error


def _decoded(value: Plain) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _decoded(item) for key, item in value.items()}
    decoder = _DECODERS.get(value[_TAG])
    if decoder is None:
        raise RestoreError(
            f"stored state has an unknown kind {value[_TAG]!r}", hint="A newer m5ws wrote the state: upgrade m5ws."
        )
    return decoder(value)


def taken(value: Plain) -> Iterator[str]:
    """Yield the names of the tensors that are stored apart from the encoded `value`."""
    if isinstance(value, list):
        for item in value:
            yield from taken(item)
    elif isinstance(value, dict) and value.get(_TAG) == "leaf":
        yield value["name"]
    elif isinstance(value, dict):
        for item in value.values():
            yield from taken(item)


def _given(value: Plain, give: Callable[[str], torch.Tensor], shard: Shard | None) -> Plain:
    """Return encoded state with the tensors that were stored apart from it."""
    if isinstance(value, list):
        return [_given(item, give, shard) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get(_TAG) == "leaf":
        return {_TAG: "leaf", "tensor": give(value["name"])}
    items = {key: _given(item, give, shard) for key, item in value.items()}
    if value.get(_TAG) == "parts" and shard is not None:
        whole = value["shards"]
        return {_TAG: "leaf", "tensor": shard(_joined(items), None if whole is None else tuple(whole))}
    return items


def _encode_parts(parts: subclasses.TensorParts, path: str, take: Take) -> Plain:
    return {
        _TAG: "parts",
        "kind": parts.kind,
        "inner": {name: encode(inner, f"{path}.{name}", take) for name, inner in parts.inner.items()},
        "context": encode(parts.context, f"{path} context"),
        "shape": list(parts.shape),
        "stride": list(parts.stride),
        "shards": None if parts.shards is None else list(parts.shards),
    }


def _joined(value: dict[str, Any]) -> torch.Tensor:
    parts = subclasses.TensorParts(
        kind=value["kind"],
        inner={name: _decoded(inner) for name, inner in value["inner"].items()},
        context=_decoded(value["context"]),
        shape=tuple(value["shape"]),
        stride=tuple(value["stride"]),
        shards=None,
    )
    return subclasses.join(parts)


def _at(path: str, key: object) -> str:
    return f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"


def _mapping(tag: str) -> Callable[[Any, str, Take | None], Plain]:
    def encode_mapping(value: Mapping[Any, Any], path: str, take: Take | None) -> Plain:
        items = [[encode(key, f"{path} key"), encode(item, _at(path, key), take)] for key, item in value.items()]
        return {_TAG: tag, "items": items}

    return encode_mapping


def _tensor(value: torch.Tensor, path: str, _take: Take | None) -> Plain:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
        raise StateError(f"{path} is a {type(value).__qualname__}, which m5ws cannot store outside model and optimizer")
    dtype = str(value.dtype).removeprefix("torch.")
    return {_TAG: "tensor", "dtype": dtype, "shape": list(value.shape), "data": tensor_bytes.readable(value).tobytes()}


def _array(value: np.ndarray, path: str, _take: Take | None) -> Plain:
    if value.dtype.hasobject or value.dtype.fields is not None:
        raise StateError(f"{path} is an array of {value.dtype}, which m5ws cannot store")
    return {_TAG: "array", "dtype": value.dtype.str, "shape": list(value.shape), "data": value.tobytes()}


def _scalar(value: Any, _path: str, _take: Take | None) -> Plain:
    return {_TAG: "scalar", "dtype": value.dtype.str, "data": value.tobytes()}


def tensor_from(data: bytearray, dtype: str, shape: Sequence[int], name: str = "stored state") -> torch.Tensor:
    """Return the tensor of row-major bytes, which it shares. `dtype` is torch's name. Raises CorruptObject."""
    kind = content_check.dtype(name, dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(kind).view(shape)


_ENCODERS: dict[type, Callable[[Any, str, Take | None], Plain]] = {
    tuple: lambda value, path, take: {_TAG: "tuple", "items": encode(list(value), path, take)},
    dict: _mapping("dict"),
    Counter: _mapping("counter"),
    OrderedDict: _mapping("ordered"),
    bytearray: lambda value, *_: {_TAG: "bytearray", "data": bytes(value)},
    np.ndarray: _array,
    torch.Size: lambda value, *_: {_TAG: "tuple", "items": list(value)},
    torch.dtype: lambda value, *_: {_TAG: "dtype", "name": str(value).removeprefix("torch.")},
}

_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "int": lambda value: int(value["hex"], 16),
    "tuple": lambda value: tuple(_decoded(item) for item in value["items"]),
    "dict": lambda value: {_decoded(key): _decoded(item) for key, item in value["items"]},
    "counter": lambda value: Counter({_decoded(key): _decoded(item) for key, item in value["items"]}),
    "ordered": lambda value: OrderedDict((_decoded(key), _decoded(item)) for key, item in value["items"]),
    "bytearray": lambda value: bytearray(value["data"]),
    "tensor": lambda value: tensor_from(bytearray(value["data"]), value["dtype"], value["shape"]),
    "array": lambda value: np.frombuffer(bytearray(value["data"]), np.dtype(value["dtype"])).reshape(value["shape"]),
    "leaf": lambda value: value["tensor"],
    "parts": _joined,
    "dtype": lambda value: content_check.dtype("stored state", value["name"]),
    "scalar": lambda value: np.frombuffer(value["data"], np.dtype(value["dtype"]))[0],
}
