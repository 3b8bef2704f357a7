"""Files of weights and state, read for a comparison without running code in them.

safetensors and NumPy files are headers and bytes. PyTorch files are zip files with a pickle, or pickles and then the
bytes of all storages (before version 1.6). Tensors are compared by digests of their bytes.
"""

import hashlib
import io
import json
import lzma
import math
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import IO

import msgspec

from m5ws.reproduce.outputs.inert_pickles import Inert, Storage, flat, load
from m5ws.reproduce.outputs.named_values import exact_text, unique

PICKLES = (".pkl", ".pickle", "/.metadata")
"""Bare pickles or PyTorch's zip files. torch.distributed.checkpoint writes the last one beside its shards."""
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", *PICKLES)
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    lzma.LZMAError,
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

LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
"""The first bytes of a file in PyTorch's format before version 1.6."""
_WINDOW_BYTES = 2**20
_PICKLE_BYTES = 2**28
_ITEM_BYTES = {
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("ByteStorage", "CharStorage", "BoolStorage"), 1),
    "ComplexDoubleStorage": 16,
}
_FLOATS = ("Float", "Double", "Half", "BFloat16", "Complex", "F", "BF", "C64")
"""Begins the types of tensors of floating-point numbers, of PyTorch and of safetensors."""
_UNTYPED, _FLOAT_TYPES = "Untyped", ("'torch.float", "'torch.bfloat", "'torch.complex")
"""PyTorch stores tensors of newer types (8-bit ones, unsigned integers) as bytes, with the type beside them."""
_FLOAT_ARRAY = re.compile(rb"'descr': '[<>=|][fc]")
_ARRAY_HEAD_BYTES = 2**10
"""Bytes in which the type and shape of a file of NumPy are."""
_CHANCE = ".data/serialization_id"
_StorageDigest = Callable[[str, int, int | None], str]
"""Digest of the bytes of a storage: its key, the first byte, and the number of bytes (None: all)."""


class FileParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a file by name: type, shape and digest of each tensor; exact text of each other value."""

    tensors: dict[str, str]
    values: dict[str, str]


def read(name: str, file: IO[bytes]) -> FileParts:
    """Return the parts of a file. Raises one of UNREADABLE."""
    if name.endswith(".safetensors"):
        return _safetensors(file)
    if name.endswith(".npy"):
        return FileParts(tensors={"array": _array(file)}, values={})
    if file.read(len(LEGACY)) == LEGACY:
        return _torch_before_1_6(file)
    if name.endswith(PICKLES) and not zipfile.is_zipfile(file):
        file.seek(0)
        return _pickle(file)
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise ValueError("two members have one name")
        if name.endswith(".npz"):
            return FileParts(tensors={member: _array(archive.open(member)) for member in members}, values={})
        return _torch(archive, members)


def has_floats(name: str, file: IO[bytes]) -> bool:
    """Return True if a file has an array, or a tensor that is no scalar, of floating-point numbers.

    Raises one of UNREADABLE.
    """
    return are_floats(read(name, file))


def are_floats(parts: FileParts) -> bool:
    """Return True if a tensor that is no scalar has floating-point numbers."""
    tensors = [text for text in parts.tensors.values() if " [] " not in text]
    return any(text.startswith(_FLOATS) for text in tensors) or (
        any(text.startswith(_UNTYPED) for text in tensors)
        and any(text.startswith(_FLOAT_TYPES) for text in parts.values.values())
    )


def _array(file: IO[bytes]) -> str:
    """Return the kind of the elements, and the digest, of a file of NumPy, as for a tensor."""
    head = file.read(_ARRAY_HEAD_BYTES)
    file.seek(0)
    return f"{'FloatArray' if is_float_array(head) else 'Array'} {digest_stream(file)}"


def is_float_array(head: bytes) -> bool:
    """Return True if a file of NumPy begins as one with floating-point or complex numbers, and is no scalar.

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    return _FLOAT_ARRAY.search(head) is not None and b"'shape': ()" not in head


def _torch(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> FileParts:
    (main,) = (name for name in members if name.count("/") == 1 and name.endswith("/data.pkl"))
    top = main.removesuffix("data.pkl")
    if members[main].file_size > _PICKLE_BYTES:
        raise ValueError("its pickle is too long")
    root, _ = load(io.BytesIO(archive.read(main)))
    parts, keys = _parts(root, lambda key, start, size_bytes: _member(archive, f"{top}data/{key}", start, size_bytes))
    used = {main, top + _CHANCE, *(f"{top}data/{key}" for key in keys)}
    rest = {f"member {name.removeprefix(top)}": _member(archive, name) for name in members.keys() - used}
    return FileParts(tensors=parts.tensors, values=parts.values | rest)


def _torch_before_1_6(file: IO[bytes]) -> FileParts:
    """Return the parts of a file of five pickles and the bytes of all storages, whose keys are addresses in memory.

    https://github.com/pytorch/pytorch/blob/main/torch/serialization.py (`_legacy_save`)
    """
    file.seek(0)
    pickles = io.BytesIO(file.read(_PICKLE_BYTES))
    _, version, system = (load(pickles)[0] for _ in range(3))
    root, reader = load(pickles)
    keys, _ = load(pickles)
    if version != 1001 or system["little_endian"] is not True:
        raise ValueError("an unknown version")
    places: dict[str, tuple[int, int]] = {}
    file.seek(pickles.tell())
    for key in keys:
        (elements,) = struct.unpack("<Q", file.read(8))
        size_bytes = elements * _ITEM_BYTES[reader.storages[key].kind]
        places[key] = file.tell(), size_bytes
        file.seek(size_bytes, io.SEEK_CUR)
    if file.tell() != file.seek(0, io.SEEK_END):
        raise ValueError("its length is another one")

    def digest(key: str, start: int = 0, size_bytes: int | None = None) -> str:
        begin, total_bytes = places[key]
        wanted_bytes = total_bytes - start if size_bytes is None else size_bytes
        if start + wanted_bytes > total_bytes:
            raise EOFError("its bytes are cut off")
        file.seek(begin + start)
        return digest_stream(file, wanted_bytes)

    parts, shown = _parts(root, digest)
    rest = {f"storage {number}": digest(key) for number, key in enumerate(reader.storages) if key not in shown}
    return FileParts(tensors=parts.tensors, values=parts.values | rest)


def _parts(root: object, digest: _StorageDigest) -> tuple[FileParts, set[str]]:
    """Return the parts of an unpickled object, and the keys of the storages among them."""
    tensors: dict[str, str] = {}
    values: dict[str, str] = {}
    keys = set[str]()
    for name, value in unique(flat(root)).items():
        if isinstance(value, Storage):
            keys.add(value.key)
            tensors[name] = f"{value.kind} [{value.elements}] {digest(value.key, 0, None)}"
        elif isinstance(value, Inert):
            tensors[name], key = _tensor(value, digest)
            keys.add(key)
        elif isinstance(value, bytes) and value.startswith(LEGACY):
            # A storage in a plain pickle (`torch.storage._load_from_bytes`).
            parts = _torch_before_1_6(io.BytesIO(value))
            tensors |= {f"{name}.{key}" if key else name: text for key, text in parts.tensors.items()}
            values |= {f"{name}.{key}" if key else name: text for key, text in parts.values.items()}
        else:
            values[name] = exact_text(value)
    return FileParts(tensors=tensors, values=values), keys


def _pickle(file: IO[bytes]) -> FileParts:
    """Return the parts of a pickle alone, which has no storages beside it."""
    data = file.read(_PICKLE_BYTES + 1)
    if len(data) > _PICKLE_BYTES:
        raise ValueError("its pickle is too long")
    stream = io.BytesIO(data)
    root, _ = load(stream)
    if stream.read(1):
        raise ValueError("bytes come after its pickle")
    return _parts(root, lambda key, *_: _missing(key))[0]


def _missing(key: str) -> str:
    raise ValueError(f"its storage {key} is missing")


def _tensor(value: Inert, digest: _StorageDigest) -> tuple[str, str]:
    """Return a tensor's type, shape and digest, and the key of its storage."""
    storage, offset, size, stride = value.arguments[0][:4]
    # torch's other flags of how to read the bytes: conjugated, negative.
    flags = "".join(
        f" {name}={exact_text(part)}" for flag in value.arguments[0][6:] for name, part in flat(flag) if name
    )
    assert isinstance(storage, Storage)
    if not isinstance(offset, int) or not isinstance(size, tuple) or not isinstance(stride, tuple):
        raise TypeError("not a tensor")
    item = _ITEM_BYTES.get(storage.kind)
    if item is None or not _is_dense(size, stride):
        return f"{storage.kind} {list(size)} {offset} {stride}{flags} {digest(storage.key, 0, None)}", storage.key
    text = digest(storage.key, offset * item, math.prod(size) * item)
    return f"{storage.kind} {list(size)}{flags} {text}", storage.key


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
        return digest_stream(stream, size_bytes)


def digest_stream(stream: IO[bytes], size_bytes: int | None = None) -> str:
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
        tensors[name] = f"{entry['dtype']} {entry['shape']} {digest_stream(file, after - start)}"
        end = after
    if file.read(1):
        raise ValueError("bytes come after its tensors")
    return FileParts(
        tensors=tensors, values={f"__metadata__.{name}": exact_text(value) for name, value in metadata.items()}
    )
