"""Files of tensors, known by their content and read for a comparison without running code in them.

safetensors and NumPy files are headers and bytes. PyTorch files are zip files with a pickle, or pickles and then the
bytes of all storages (before version 1.6). A file is read only if its parts explain every byte of it. Tensors are
compared by digests of their bytes.
"""

import ast
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

from m5ws.reproduce.outputs import exact_zips
from m5ws.reproduce.outputs.inert_pickles import Inert, Storage, flat, load
from m5ws.reproduce.outputs.named_values import exact_text, unique

SUFFIXES = (
    *(".safetensors", ".pt", ".pth", ".pth.tar", ".bin", ".ckpt", ".npz", ".npy", ".pkl", ".pickle"),
    *(".distcp", ".gguf", ".h5", ".joblib", ".keras", ".msgpack", ".onnx", ".pt2", ".ptl", ".tflite"),
)
"""Ends of the names of files of weights, in formats that are read here and in others."""
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    lzma.LZMAError,
    MemoryError,
    RuntimeError,
    SyntaxError,
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
HEAD_BYTES = len(LEGACY)
"""Number of bytes that identify a format."""
_ZIP, _PICKLE, _ARRAY = b"PK\x03\x04", b"\x80", b"\x93NUMPY"
_WINDOW_BYTES = 2**20
_PICKLE_BYTES = 2**28
_ARRAY_HEAD_BYTES = 2**16
_ITEM_BYTES = {
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("ByteStorage", "CharStorage", "BoolStorage"), 1),
    "ComplexDoubleStorage": 16,
}
_CHECKSUM, _CHECKSUM_CHARACTERS = ".data/serialization_id", 40
"""A member of PyTorch's zip files that depends on the bytes of all other members, and its length."""
_StorageDigest = Callable[[str, int, int | None], str]
"""Digest of the bytes of a storage: its key, the first byte, and the number of bytes (None: all)."""


class FileParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a file by name: type, shape and digest of each tensor; exact text of each other value."""

    tensors: dict[str, str]
    values: dict[str, str]


def is_known(head: bytes) -> bool:
    """Return True if a file that begins with these bytes, `HEAD_BYTES` or all, may be of a format that is read."""
    return head.startswith((_ZIP, _PICKLE, _ARRAY)) or _is_safetensors(head)


def read(file: IO[bytes]) -> FileParts:
    """Return the parts of a file. Raises one of UNREADABLE."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if head.startswith(_ARRAY):
        return _array("array", file)
    if head == LEGACY:
        return _torch_before_1_6(file)
    if head.startswith(_ZIP):
        return _zip(file)
    if head.startswith(_PICKLE):
        return _pickle(file)
    if _is_safetensors(head):
        return _safetensors(file)
    raise ValueError("not a format with tensors")


def _is_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _PICKLE_BYTES


def _zip(file: IO[bytes]) -> FileParts:
    with zipfile.ZipFile(file) as archive:
        exact_zips.check(file, archive)
        members = {member.filename: member for member in archive.infolist()}
        if not members or not all(name.endswith(".npy") for name in members):
            return _torch(archive, members)
        arrays = [_array(name, archive.open(member)) for name, member in members.items()]
    tensors = {name: text for parts in arrays for name, text in parts.tensors.items()}
    return FileParts(tensors=tensors, values={name: text for parts in arrays for name, text in parts.values.items()})


def _array(name: str, file: IO[bytes]) -> FileParts:
    """Return the parts of a file of NumPy: one tensor, or one value if its elements are pickled objects.

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    begin = file.read(8)
    size_bytes = int.from_bytes(length := file.read(2 if begin[6:7] == b"\x01" else 4), "little")
    if not begin.startswith(_ARRAY) or size_bytes > _ARRAY_HEAD_BYTES:
        raise ValueError("not a file of NumPy")
    head = file.read(size_bytes)
    fields = ast.literal_eval(head.decode("latin-1"))
    item_bytes = _item_bytes(fields["descr"])
    digest = hashlib.blake2b(begin + length + head, digest_size=32)
    if item_bytes is None:
        return FileParts(tensors={}, values={name: f"objects {digest_stream(file, digest=digest)}"})
    text = digest_stream(file, math.prod(fields["shape"]) * item_bytes, digest)
    if file.read(1):
        raise ValueError("bytes come after the array")
    return FileParts(tensors={name: f"{fields['descr']} {list(fields['shape'])} {text}"}, values={})


def _item_bytes(kind: object) -> int | None:
    """Return the bytes of an element of a NumPy type; None if it is an object."""
    if isinstance(kind, list):  # A record: (name, type) or (name, type, shape) for each field.
        parts = [(_item_bytes(field[1]), math.prod(field[2]) if len(field) > 2 else 1) for field in kind]
        return None if any(size is None for size, _ in parts) else sum((size or 0) * count for size, count in parts)
    match = re.fullmatch(r"[<>|=]?([a-zA-Z])(\d*)(\[.*\])?", str(kind))
    if match is None:
        raise ValueError(f"unknown type {kind!r}")
    return None if match[1] == "O" else int(match[2]) * (4 if match[1] == "U" else 1)


def _torch(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> FileParts:
    (main,) = (name for name in members if name.count("/") == 1 and name.endswith("/data.pkl"))
    top = main.removesuffix("data.pkl")
    if members[main].file_size > _PICKLE_BYTES:
        raise ValueError("its pickle is too long")
    root, _ = load(io.BytesIO(archive.read(main)))
    parts, keys = _parts(root, lambda key, start, size_bytes: _member(archive, f"{top}data/{key}", start, size_bytes))
    used = {main, *(f"{top}data/{key}" for key in keys)}
    if (checksum := members.get(top + _CHECKSUM)) is not None and checksum.file_size == _CHECKSUM_CHARACTERS:
        used.add(checksum.filename)
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
        raise ValueError("its length does not match its storages")

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
    keys, covered = dict[str, str](), set[str]()
    for name, value in unique(flat(root)).items():
        if isinstance(value, Storage):
            keys[value.key] = name
            covered.add(value.key)
            tensors[name] = f"{value.kind} [{value.elements}] {digest(value.key, 0, None)}"
        elif isinstance(value, Inert):
            tensors[name], storage, is_whole = _tensor(value, digest)
            keys.setdefault(storage, name)
            covered |= {storage} if is_whole else set()
        elif isinstance(value, bytes) and value.startswith(LEGACY):
            # A storage in a plain pickle (`torch.storage._load_from_bytes`).
            parts = _torch_before_1_6(io.BytesIO(value))
            tensors |= {f"{name}.{key}" if key else name: text for key, text in parts.tensors.items()}
            values |= {f"{name}.{key}" if key else name: text for key, text in parts.values.items()}
        else:
            values[name] = exact_text(value)
    # Bytes that no tensor shows, such as the rest of a tensor of which a part was saved.
    values |= {f"storage of {name}": digest(key, 0, None) for key, name in keys.items() if key not in covered}
    return FileParts(tensors=tensors, values=values), set(keys)


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


def _tensor(value: Inert, digest: _StorageDigest) -> tuple[str, str, bool]:
    """Return a tensor's type, shape and digest, the key of its storage, and True if it shows all bytes of that."""
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
        return f"{storage.kind} {list(size)} {offset} {stride}{flags} {digest(storage.key, 0, None)}", storage.key, True
    text = digest(storage.key, offset * item, math.prod(size) * item)
    return f"{storage.kind} {list(size)}{flags} {text}", storage.key, math.prod(size) == storage.elements


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


def digest_stream(stream: IO[bytes], size_bytes: int | None = None, digest: "hashlib.blake2b | None" = None) -> str:
    """Return a digest of the rest of a stream, or of its next `size_bytes`. Raises EOFError if it has fewer."""
    digest, left = digest or hashlib.blake2b(digest_size=32), size_bytes
    while left != 0 and (data := stream.read(_WINDOW_BYTES if left is None else min(left, _WINDOW_BYTES))):
        digest.update(data)
        left = None if left is None else left - len(data)
    if left:
        raise EOFError("its bytes are cut off")
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
