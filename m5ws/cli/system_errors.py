"""Errors of the machine at the edge of the command line: the object, and what to do.

An error of a store names the store (`LocalStore`); an error of another file names its path.
"""

import errno

_SPACE = "Free space there, or choose another place ([store] url, [run] work_dir, TMPDIR). Then run the command again."
_PERMISSION = "Ask the owner for permission, or run the command as the owner."
_PATH = "Check the path: it does not exist, or has another type."
_DISK = "Check the disk or the network file system (`dmesg`). Then run the command again."
_FILES_LIMIT = "Raise the limit of open files (`ulimit -n`)."
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EROFS: "Mount the file system writable, or choose another place ([store] url, [run] work_dir).",
    errno.EIO: _DISK,
    errno.EMFILE: _FILES_LIMIT,
    errno.ENFILE: _FILES_LIMIT,
    errno.ENOMEM: "Free memory, or start fewer processes.",
}
"""Remedies for errors of a disk or of a limit, from any system call."""
_FILE_REMEDIES = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.ENOENT: _PATH,
    errno.ENOTDIR: _PATH,
    errno.EISDIR: _PATH,
    errno.ELOOP: _PATH,
    errno.ENAMETOOLONG: "Choose a shorter path.",
    errno.EEXIST: "Remove the file, or choose another path.",
    errno.ESTALE: _DISK,
    errno.ETXTBSY: "Wait until no process uses the file.",
    errno.EBUSY: "Wait until no process uses the file.",
}
"""Remedies for errors that are about a file, if they name a file."""


def describe(error: OSError | UnicodeError) -> tuple[str, str] | None:
    """Return the message and the hint of a condition that a user can change; None for a bug."""
    if isinstance(error, UnicodeError):
        return _describe_text(error)
    if isinstance(error, ConnectionError | TimeoutError):
        return _message(error), "Check the network. Then run the command again."
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
