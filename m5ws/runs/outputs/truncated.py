"""Detection of checkpoint files that a killed process did not write to their end.

safetensors files contain their size. PyTorch's and NumPy's zip files end with a directory of their members. Other files
are not checked.
"""

import json
import struct
import zipfile
from pathlib import Path

_ZIP = (".pt", ".pth", ".ckpt", ".npz", ".bin")
_ZIP_BEGIN = b"PK\x03\x04"
_LENGTH = struct.Struct("<Q")


def is_truncated(path: Path) -> bool:
    """Return True if the end of a checkpoint file is missing; False for a file that cannot be read."""
    try:
        return _is_short(path) if path.suffix == ".safetensors" else path.suffix in _ZIP and _is_open_zip(path)
    except OSError:
        return False


def _is_open_zip(path: Path) -> bool:
    """Return True if a zip file has no directory, or a file is empty; an empty `.bin` may be any file.

    Files of older versions of PyTorch, and other formats with these suffixes, are not zip files.
    """
    with path.open("rb") as file:
        begin = file.read(len(_ZIP_BEGIN))
    if not begin:
        return path.suffix != ".bin"
    return begin == _ZIP_BEGIN and not zipfile.is_zipfile(path)


def _is_short(path: Path) -> bool:
    """Return True if a safetensors file is shorter than its header requires.

    https://github.com/huggingface/safetensors#format
    """
    with path.open("rb") as file:
        size_bytes = path.stat().st_size
        begin = file.read(_LENGTH.size)
        if len(begin) < _LENGTH.size:
            return True
        (length,) = _LENGTH.unpack(begin)
        if _LENGTH.size + length > size_bytes:
            return True
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return bool(size_bytes < _LENGTH.size + length + max(ends, default=0))
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
            return False  # another format
