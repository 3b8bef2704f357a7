"""Lines of a rank's log as they are written, with secrets masked, and without colours and movements of the cursor.

A log may be of any size, and grow at any speed: memory is bounded by the limits here. A long line of a progress bar,
which writes its states over each other, is its last state, as on a terminal.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from m5ws import secret_scan

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""A control sequence of a terminal (ECMA-48, section 5.4), such as one for a colour or a movement of the cursor."""
_KEY_BYTES = 16_384
"""The longest private key that is waited for. A key has many lines, and only a whole key is recognised."""
_BLOCK_BYTES = 2**20
"""The part of a log that is in memory at once, and the longest line that is read."""
LONG_CHARACTERS = 4_096
"""The longest line that is stored, and that has all states of a progress bar."""
_FLOOD_BYTES = 4 * 2**20
_CUT = " [the line is cut here]"
_TAIL_BYTES = 64 * 2**10


class LogReader:
    """Reads the lines that were added to a log since the last call. The file need not exist yet.

    With `at_end`, existing lines are left out.
    """

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._path = path
        self._place = self._size() if at_end else 0
        self._is_inside = False
        """True inside a line whose beginning was read or left out. Its rest is left out."""

    def read(self, *, last: bool = False, most_bytes: int = _FLOOD_BYTES) -> list[str]:
        """Return new lines that end with a newline; with `last`, an unfinished last line too.

        The middle of more than `most_bytes` is left out, and a line in its place has the number of its bytes.
        """
        before, half = self._place, most_bytes // 2
        lines = self._next(half, last=last)
        skipped = self._size() - half - self._place
        if skipped > 0:
            self._place += skipped
            self._is_inside = True
            lines.append(f"[{skipped:,} bytes of this log are left out]")
        # The first block may have ended before the present end of the log.
        return lines + self._next(most_bytes, last=last) if self._place > before else lines

    def read_all(self, *, last: bool = False) -> Iterator[list[str]]:
        """Yield all new lines, as `read` returns them."""
        before = -1
        while self._place != before:
            before = self._place
            if lines := self._next(_BLOCK_BYTES, last=last):
                yield lines

    def read_bar(self) -> str | None:
        """Return the state of a progress bar, which writes one line again and again; None without one."""
        states = self._unread(_BLOCK_BYTES).rpartition(b"\n")[2].split(b"\r")[:-1]
        return next((text for text in map(_plain, reversed(states)) if text.strip()), None)

    def _next(self, most_bytes: int, *, last: bool) -> list[str]:
        """Return the lines of the next block of the log."""
        text = self._unread(most_bytes)
        is_full = len(text) == most_bytes
        if self._is_inside:
            text = self._leave_line(text)
        whole, mark = text if last and not is_full else _whole(text), ""
        if is_full and text and not whole:
            # The block has no end of a line. States of a progress bar that are overwritten need not be kept.
            self._place += text.rfind(b"\r") + 1
            if b"\r" not in text:
                whole, mark, self._is_inside = text, _CUT, True
        self._place += len(whole)
        plain = _plain(whole)
        return (plain.removesuffix("\n") + mark).split("\n") if plain else []

    def _leave_line(self, text: bytes) -> bytes:
        """Leave out the rest of a line, and of a private key that began before it. Return the text after it."""
        key = text.find(b"-----END ", 0, _KEY_BYTES)
        begin = 0 if key < 0 or b"-----BEGIN " in text[:key] else key
        ends = [at for at in (text.find(b"\n", begin), text.find(b"\r", begin)) if at >= 0]
        at = min(ends) + 1 if ends else len(text)
        self._place += at
        self._is_inside = not ends
        return text[at:]

    def _unread(self, most_bytes: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                return file.read(most_bytes)
        except FileNotFoundError:
            return b""

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0


def read_end(path: Path, most_lines: int) -> tuple[int, list[str]]:
    """Return the last lines of a log, after their place in bytes. Of a large log, the end alone is read.

    Secrets are not masked.
    """
    for length in (_TAIL_BYTES, _BLOCK_BYTES):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - length))
            text = file.read(min(size, length))  # A log may grow meanwhile.
        if size <= length or text.count(b"\n") > most_lines:
            break
    ends = text.endswith(b"\n")
    lines = text[: len(text) - ends].split(b"\n") if text else []
    if size > length:
        lines = lines[1:] or lines
    lines = lines[-most_lines:]
    place = size - sum(len(line) + 1 for line in lines) + (not ends)
    return place, [_visible(line.decode("utf-8", "replace")) for line in lines]


def count_lines(path: Path, size_bytes: int) -> int:
    """Return the number of lines in the first bytes of a log."""
    count = 0
    with path.open("rb") as file:
        while block := file.read(min(_BLOCK_BYTES, size_bytes - file.tell())):
            count += block.count(b"\n")
    return count


def _plain(text: bytes) -> str:
    """Return text without control sequences, and without lines of blanks and such sequences alone."""
    lines = text.decode("utf-8", "replace").split("\n")
    plain = [(line, _visible(line)) for line in lines]
    # Masked as a whole, because a private key has many lines.
    return secret_scan.masked("\n".join(shown for line, shown in plain if shown.strip() or shown == line))


def _visible(line: str) -> str:
    """Return a line without control sequences; of a long line of a progress bar, the last state."""
    line = _SEQUENCE.sub("", line)
    return last_state(line) if len(line) > LONG_CHARACTERS else line


def last_state(line: str) -> str:
    """Return the last state of a line of a progress bar, and any other line as it is."""
    return next((state for state in reversed(line.split("\r")) if state.strip()), line)


def _whole(text: bytes) -> bytes:
    """Return whole lines, up to a private key whose end is not written yet."""
    text = text[: text.rfind(b"\n") + 1]
    begin = text.rfind(b"-----BEGIN ")
    if begin >= 0 and b"-----END " not in text[begin:] and len(text) - begin < _KEY_BYTES:
        return text[: text.rfind(b"\n", 0, begin) + 1]
    return text
