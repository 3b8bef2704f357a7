"""Files of weights and state, read for a comparison without running code in them.

safetensors and NumPy files are headers and bytes. PyTorch files are zip files with a pickle, whose names of classes and
functions are read and never looked up: each becomes an inert record. Tensors are compared by digests of their bytes.
https://docs.python.org/3/library/pickle.html#restricting-globals
"""

import hashlib
import io
import json
import math
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import msgspec

from m5ws.reproduce.outputs.named_values import exact_text, unique

PICKLES = (".pkl", ".pickle", "/.metadata")
"""Bare pickles or PyTorch's zip files. torch.distributed.checkpoint writes the last one beside its shards."""
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", *PICKLES)
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.PickleError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors raised here for a damaged file or another format. Such a file is compared as bytes."""

_WINDOW_BYTES = 2**20
_PICKLE_BYTES = 2**28
_VALUES = 10**6
_NAMES_CHARACTERS = 2**26
_ITEM_BYTES = {
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("ByteStorage", "CharStorage", "BoolStorage"), 1),
    "ComplexDoubleStorage": 16,
}
_REBUILD = "torch._utils._rebuild_tensor_v2"
_CHANCE = ".data/serialization_id"


class FileParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a file by name: type, shape and digest of each tensor; exact text of each other value."""

    tensors: dict[str, str]
    values: dict[str, str]


def read(name: str, file: IO[bytes]) -> FileParts:
    """Return the parts of a file. Raises one of UNREADABLE."""
    if name.endswith(".safetensors"):
        return _safetensors(file)
    if name.endswith(".npy"):
        return FileParts(tensors={"array": _digest(file)}, values={})
    if name.endswith(PICKLES) and not zipfile.is_zipfile(file):
        file.seek(0)
        return _pickle(file)
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise ValueError("two members have one name")
        if name.endswith(".npz"):
            return FileParts(tensors={member: _member(archive, member) for member in members}, values={})
        return _torch(archive, members)


def flat(root: object) -> Iterator[tuple[str, object]]:
    """Yield the values in nested lists and mappings by their dotted names, and where an object contains itself.

    Raises ValueError for too many values or too long names.
    """
    waiting: list[tuple[str, str | None, object]] = [("", "", root)]
    around: dict[int, str] = {}  # Names of the objects that contain the current one, by their ids.
    count = characters = 0
    while waiting:
        name, key, value = waiting.pop()
        if key is None:
            del around[id(value)]
            continue
        name = f"{name}.{key}" if name else key
        count += 1
        characters += len(name)
        if count > _VALUES or characters > _NAMES_CHARACTERS:
            raise ValueError("too many values")
        below = _below(value)
        if below is None:
            yield name, value
        elif id(value) in around:
            yield name, ("same object as", around[id(value)])
        else:
            # A framework that restores a tuple may save it as a list.
            yield name, {} if type(value) is dict else [] if type(value) in (list, tuple) else _title(value)
            around[id(value)] = name
            waiting.append((name, None, value))
            waiting += [(name, key, part) for key, part in below]


class _Inert:
    """A class or function that a pickle names, called with `arguments` and given a `state`."""

    title = ""

    def __new__(cls, *arguments: object, **keywords: object) -> "_Inert":
        made = super().__new__(cls)
        made.arguments, made.state, made.items, made.pairs = (arguments, keywords), None, [], []
        return made

    arguments: tuple[tuple[object, ...], dict[str, object]]
    state: object
    items: list[object]
    pairs: list[tuple[object, object]]

    def __init__(self, *arguments: object, **keywords: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state

    def append(self, item: object) -> None:
        self.items.append(item)

    def extend(self, items: list[object]) -> None:
        self.items.extend(items)

    def __setitem__(self, key: object, value: object) -> None:
        self.pairs.append((key, value))


class _Storage(msgspec.Struct, frozen=True):
    """A tensor's bytes, by the name of their zip member."""

    kind: str
    key: str
    elements: int


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Inert]:
        # Each name gets its own class, so that a pickle cannot change another one.
        return type("Inert", (_Inert,), {"title": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key, _, elements = pid
        if kind != "storage":
            raise ValueError("not a tensor's storage")
        return _Storage(kind=str(storage.title).rpartition(".")[2], key=str(key), elements=int(elements))


def _torch(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> FileParts:
    (main,) = (name for name in members if name.count("/") == 1 and name.endswith("/data.pkl"))
    top = main.removesuffix("data.pkl")
    if members[main].file_size > _PICKLE_BYTES:
        raise ValueError("its pickle is too long")
    data = archive.read(main)
    _check(data)
    tensors: dict[str, str] = {}
    values: dict[str, str] = {}
    used = {main, top + _CHANCE}
    for name, value in unique(flat(_Reader(io.BytesIO(data)).load())).items():
        if isinstance(value, _Storage):
            used.add(f"{top}data/{value.key}")
            tensors[name] = f"{value.kind} [{value.elements}] {_member(archive, f'{top}data/{value.key}')}"
        elif isinstance(value, _Inert):
            tensors[name], member = _tensor(archive, top, value)
            used.add(member)
        else:
            values[name] = exact_text(value)
    rest = {f"member {name.removeprefix(top)}": _member(archive, name) for name in members.keys() - used}
    return FileParts(tensors=tensors, values=values | rest)


def _pickle(file: IO[bytes]) -> FileParts:
    """Return the values of a pickle alone."""
    data = file.read(_PICKLE_BYTES + 1)
    if len(data) > _PICKLE_BYTES:
        raise ValueError("its pickle is too long")
    _check(data)
    stream = io.BytesIO(data)
    values = unique((name, exact_text(value)) for name, value in flat(_Reader(stream).load()))
    if stream.read(1):
        raise ValueError("bytes come after its pickle")
    return FileParts(tensors={}, values=values)


def _check(data: bytes) -> None:
    """Refuse a pickle that would make the reader allocate memory far beyond its size. Raises ValueError."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise ValueError("its pickle numbers objects that are missing")
        if opcode.name.startswith("EXT"):
            raise ValueError("its pickle names registered extensions")


def _below(value: object) -> list[tuple[str, object]] | None:
    """Return the named parts of a value, None if it has none."""
    if isinstance(value, dict):
        return [(_key(key), part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(number), part) for number, part in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [(str(number), part) for number, part in enumerate(sorted(map(exact_text, value)))]
    if isinstance(value, type) and issubclass(value, _Inert):
        return []
    if not isinstance(value, _Inert) or _is_tensor(value):
        return None
    called, keywords = value.arguments
    parts: list[tuple[str, object]] = [(f"({number})", part) for number, part in enumerate(called)]
    parts += [(f"({name})", part) for name, part in keywords.items()]
    parts += [(str(number), part) for number, part in enumerate(value.items)]
    parts += [(_key(key), part) for key, part in value.pairs]
    return parts if value.state is None else [*parts, ("(state)", value.state)]


def _title(value: object) -> str:
    return str(getattr(value, "title", type(value).__name__))


def _key(key: object) -> str:
    if isinstance(key, _Inert):
        return f"[{' '.join(f'{name}={exact_text(value)}' for name, value in flat(key))}]"
    return key if isinstance(key, str) else f"[{exact_text(key)}]"


def _is_tensor(value: _Inert) -> bool:
    called = value.arguments[0]
    return value.title == _REBUILD and len(called) >= 4 and isinstance(called[0], _Storage)


def _tensor(archive: zipfile.ZipFile, top: str, value: _Inert) -> tuple[str, str]:
    """Return a tensor's type, shape and digest, and the member with its bytes."""
    storage, offset, size, stride = value.arguments[0][:4]
    # torch's other flags of how to read the bytes: conjugated, negative.
    flags = "".join(
        f" {name}={exact_text(part)}" for flag in value.arguments[0][6:] for name, part in flat(flag) if name
    )
    assert isinstance(storage, _Storage)
    if not isinstance(offset, int) or not isinstance(size, tuple) or not isinstance(stride, tuple):
        raise TypeError("not a tensor")
    member = f"{top}data/{storage.key}"
    item = _ITEM_BYTES.get(storage.kind)
    if item is None or not _is_dense(size, stride):
        return f"{storage.kind} {list(size)} {offset} {stride}{flags} {_member(archive, member)}", member
    digest = _member(archive, member, offset * item, math.prod(size) * item)
    return f"{storage.kind} {list(size)}{flags} {digest}", member


def _is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


def _member(archive: zipfile.ZipFile, name: str, start: int = 0, size_bytes: int | None = None) -> str:
    with archive.open(name) as stream:
        left = start
        while left and (passed := len(stream.read(min(left, _WINDOW_BYTES)))):
            left -= passed
        return _digest(stream, size_bytes)


def _digest(stream: IO[bytes], size_bytes: int | None = None) -> str:
    """Return a digest of the rest of a stream, or of its next `size_bytes`. Raises EOFError if it has fewer."""
    digest, left = hashlib.blake2b(digest_size=32), size_bytes
    while left is None or left:
        data = stream.read(_WINDOW_BYTES if left is None else min(left, _WINDOW_BYTES))
        if not data:
            if left is None:
                break
            raise EOFError("its bytes are cut off")
        digest.update(data)
        left = None if left is None else left - len(data)
    return digest.hexdigest()


def _safetensors(file: IO[bytes]) -> FileParts:
    size = int.from_bytes(file.read(8), "little")
    if size > _PICKLE_BYTES:
        raise ValueError("its header is too long")
    header = json.loads(file.read(size), object_pairs_hook=unique)
    metadata = header.pop("__metadata__", {})
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, after = entry["data_offsets"]
        if start != end:
            raise ValueError("its tensors overlap, or leave a gap")
        tensors[name] = f"{entry['dtype']} {entry['shape']} {_digest(file, after - start)}"
        end = after
    if file.read(1):
        raise ValueError("bytes come after its tensors")
    return FileParts(
        tensors=tensors, values={f"__metadata__.{name}": exact_text(value) for name, value in metadata.items()}
    )
