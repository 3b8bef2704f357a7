"""Lines of a rank's log as they are written, with secrets masked, and without colours and movements of the cursor."""

import re
from pathlib import Path

from m5ws import secret_scan

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""A control sequence of a terminal (ECMA-48, section 5.4), such as one for a colour or a movement of the cursor."""
_KEY_BYTES = 16_384
"""The longest private key that is waited for. A key has many lines, and only a whole key is recognised."""


class LogReader:
    """Reads the lines that were added to a log since the last call. The file need not exist yet.

    With `at_end`, existing lines are left out.
    """

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._path = path
        self._place = path.stat().st_size if at_end and path.exists() else 0

    def read(self, *, last: bool = False) -> list[str]:
        """Return new lines that end with a newline; with `last`, an unfinished last line too."""
        text = self._unread()
        if not last:
            text = _whole(text)
        self._place += len(text)
        plain = _plain(text)
        return plain.removesuffix("\n").split("\n") if plain else []

    def read_bar(self) -> str | None:
        """Return the state of a progress bar, which writes one line again and again; None without one."""
        states = self._unread().rpartition(b"\n")[2].split(b"\r")[:-1]
        return next((text for text in map(_plain, reversed(states)) if text.strip()), None)

    def _unread(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                return file.read()
        except FileNotFoundError:
            return b""


def _plain(text: bytes) -> str:
    """Return text without control sequences, and without lines of blanks and such sequences alone."""
    lines = text.decode("utf-8", "replace").split("\n")
    plain = [(line, _SEQUENCE.sub("", line)) for line in lines]
    # Masked as a whole, because a private key has many lines.
    return secret_scan.masked("\n".join(shown for line, shown in plain if shown.strip() or shown == line))


def _whole(text: bytes) -> bytes:
    """Return whole lines, up to a private key whose end is not written yet."""
    text = text[: text.rfind(b"\n") + 1]
    begin = text.rfind(b"-----BEGIN ")
    if begin >= 0 and b"-----END " not in text[begin:] and len(text) - begin < _KEY_BYTES:
        return text[: text.rfind(b"\n", 0, begin) + 1]
    return text
