"""Contents of files that are compared: their digest, and their parts if their format has some."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import IO

import msgspec

from m5ws.reproduce.outputs import tensor_files, text_values

_READ_BYTES = 2**26
"""Upper bound of a file that is read only to find out if it has tensors. A longer file is known by its first bytes."""
_SHOWN = 200


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a file: digest and length; functions that read the first `HEAD_BYTES`, and open all for seeking."""

    digest: str
    size_bytes: int
    head: Callable[[], bytes]
    open: Callable[[], AbstractContextManager[IO[bytes]]]

    def has_tensors(self) -> bool:
        """Return True if the file is of a format with tensors and has one."""
        if not tensor_files.is_known(self.head()):
            return False
        if self.size_bytes > _READ_BYTES:
            return True
        parts, _ = self.read_parts()
        return parts is not None and bool(parts.tensors)

    def read_parts(self) -> tuple[tensor_files.FileParts | None, str]:
        """Return the parts of a file of a format with tensors; None with the reason if it is none."""
        if not tensor_files.is_known(self.head()):
            return None, "its format is unknown"
        try:
            with self.open() as file:
                return tensor_files.read(file), ""
        except tensor_files.UNREADABLE as error:
            return None, str(error) or type(error).__name__

    def read_text(self) -> bytes:
        """Return the bytes of a text. Raises ValueError if the file is too long for one."""
        if self.size_bytes > text_values.TEXT_BYTES:
            raise ValueError(f"more than {text_values.TEXT_BYTES:,} bytes are not read as text")
        with self.open() as file:
            return file.read()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The first differing value of two files, with the texts of both sides; None for an absent value."""

    key: str | None = None
    original: str | None = None
    replayed: str | None = None


def first_place(old: Mapping[str, str], new: Mapping[str, str]) -> Place | None:
    """Return the first value that differs, None if all are equal."""
    key = next((key for key in (*old, *new) if old.get(key) != new.get(key)), None)
    if key is None:
        return None
    return Place(key=key, original=_short(old.get(key)), replayed=_short(new.get(key)))


def first_tensor(old: Mapping[str, str], new: Mapping[str, str]) -> Place | None:
    """Return the first tensor that differs, None if all are equal.

    Tensors with a name that one side lacks are equal if the other side has the same tensors under other names: a name
    may contain the path of the run's folder. Names are values, and are listed.
    """
    both = [name for name in old if name in new]
    place = first_place({name: old[name] for name in both}, {name: new[name] for name in both})
    rest = [{name: text for name, text in side.items() if name not in both} for side in (old, new)]
    if place is None and sorted(rest[0].values()) != sorted(rest[1].values()):
        place = first_place(rest[0], rest[1])
    return place


def first_value(name: str, old: Content, new: Content) -> Place:
    """Return the first key or line that differs, in two files with different bytes and without tensors."""
    try:
        place = first_place(*(text_values.values(name, side.read_text()) for side in (old, new)))
    except (ValueError, MemoryError):
        place = None
    return place or Place(original=old.digest, replayed=new.digest)


def _short(text: str | None) -> str | None:
    """Return a value for a verdict. A long value is cut, and gets a digest."""
    if text is None or len(text) <= _SHOWN:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{text[:_SHOWN]}… ({len(text):,} characters, digest {digest})"
