"""Atomic writes, and the stamps that decide whether a file counts as unchanged.

Imports only the smallest modules of the standard library, because the module that starts git imports this module.
"""

import operator
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

Stamp = tuple[int, int, int, int]
"""Size, mtime and ctime in nanoseconds, inode."""


def stamp(status: os.stat_result) -> Stamp:
    """Return the fields that stay equal while a file counts as unchanged."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


mode_and_stamp: "Callable[[os.stat_result], tuple[int, ...]]" = operator.attrgetter(
    "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""Returns the mode, then the stamp. Written in C, because it is called for each file of a workspace."""


def write_atomically(path: "str | os.PathLike[str]", data: bytes, *, durable: bool = False) -> None:
    """Write a file atomically: readers get its old content or `data`.

    The folder must exist. A power failure can lose the file, or leave it empty unless it is `durable`. Raises OSError
    and removes the temporary file on failure.
    """
    folder, name = os.path.split(os.fspath(path))
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
