"""Files written at once, and the stamps by which files count as unchanged.

Imports nothing but the standard library's smallest modules: git is started by a module that needs this one.
"""

import operator
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

Stamp = tuple[int, int, int, int]
"""Size, mtime and ctime in nanoseconds, inode."""


def stamp(found: os.stat_result) -> Stamp:
    """Return the fields that are equal for a file that counts as unchanged."""
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


mode_and_stamp: "Callable[[os.stat_result], tuple[int, ...]]" = operator.attrgetter(
    "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""Returns the mode, then the stamp; called for each file of a workspace, so it is C code."""


def write_atomically(path: "str | os.PathLike[str]", data: bytes, *, durable: bool = False) -> None:
    """Write a file that readers see whole: its old content or `data`.

    After a power cut it may be lost; it may be empty too, unless it is to be `durable`. The folder must exist.
    Raises OSError, and leaves nothing behind then.
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
