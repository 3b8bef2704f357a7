"""The temporary folder of an attempt, if its processes may not write to the machine's.

`temporary` in the attempt's directory is a link to it. Its path is short: the path of a socket has at most 108 bytes.
"""

import shutil
import tempfile
from pathlib import Path

_LINK = "temporary"


def make(attempt: Path) -> Path:
    """Create the temporary folder of the attempt with the directory `attempt`. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=_prefix(attempt))).resolve()
    (attempt / _LINK).symlink_to(folder)
    return folder


def remove(attempt: Path) -> None:
    """Remove the temporary folder of an attempt and its content, if it has one."""
    link = attempt / _LINK
    if link.is_symlink() and (folder := link.readlink()).name.startswith(_prefix(attempt)):
        shutil.rmtree(folder, ignore_errors=True)
        link.unlink()


def _prefix(attempt: Path) -> str:
    """Return the begin of the folder's name. In a copy of the attempt's directory the number does not match."""
    return f"m5ws-{attempt.stat().st_ino:x}-"
