"""Errors of the machine at the edge of the command line: the object, and what to do.

An error of a store names the store (`LocalStore`); an error of another file names its path.
"""

import errno
import os
from pathlib import Path

from m5ws.access import PathDenied

_DISK = "Check the disk or the network file system (`dmesg`). Then run the command again."
_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS),
        "Free space there, or choose another place ([store] url, [run] work_dir, TMPDIR). Then run the command again.",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit of open files (`ulimit -n`)."),
    errno.EIO: _DISK,
    errno.ENOMEM: "Free memory, or start fewer processes.",
}
"""Remedies for errors of a disk or of a limit, from any system call."""
_FILE_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST),
        "Check the path, or choose another path.",
    ),
    **dict.fromkeys((errno.ETXTBSY, errno.EBUSY), "Wait until no process uses the file."),
    errno.ESTALE: _DISK,
}
"""Remedies for errors that are about a file, if they name a file."""


def describe(error: OSError | UnicodeError) -> tuple[str, str] | None:
    """Return the message and the hint of a condition that a user can change; None for a bug."""
    if isinstance(error, UnicodeError):
        return _describe_text(error)
    if isinstance(error, ConnectionError | TimeoutError):
        return _message(error), "Check the network. Then run the command again."
    if isinstance(error, PermissionError) and error.filename is not None:
        denied = PathDenied(Path(os.fsdecode(error.filename)))
        return str(denied), denied.hint
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None and error.filename is not None:
        remedy = _FILE_REMEDIES.get(error.errno or 0)
    return (_message(error), remedy) if remedy is not None else None


def _message(error: OSError) -> str:
    text = error.strerror or str(error)
    name = error.filename
    return text if name is None else f"{text}: {name.decode(errors='replace') if isinstance(name, bytes) else name}"


def _describe_text(error: UnicodeError) -> tuple[str, str] | None:
    """Return the message for a path or argument that is not UTF-8: Python has surrogates in place of its bytes."""
    if not isinstance(error, UnicodeEncodeError) or error.reason != "surrogates not allowed":
        return None
    return f"not UTF-8: {error.object[:200]!a}", "Rename the file or folder, or give other text."
