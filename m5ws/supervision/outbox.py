"""Messages of this machine for one target, in files that are sent in order.

Each message is sent at most once, and exactly once if no process is killed while it sends. `NUMBER.json` waits.
`NUMBER.sending` is being sent, or its sender was killed: the target may have that message, so nobody sends it again.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from m5ws import locks
from m5ws.errors import M5Error
from m5ws.supervision.messages import Message

_OLDEST_S = 7 * 86_400.0
"""Older messages are dropped."""
_WAITS, _SENDING = ".json", ".sending"
_log = logging.getLogger(__name__)


class NotSent(M5Error):
    """A message did not arrive."""

    exit_code = 1


Send = Callable[[Message], None]
"""Sends a message. Raises NotSent if it did not arrive, so that it is sent again later."""


class Outbox:
    """The messages in a folder, which is created at the first message."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, message: Message) -> None:
        """Add a message, as the last. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._folder / f".{os.getpid()}-{os.urandom(4).hex()}"
        new.write_bytes(msgspec.json.encode(message))
        number = max((int(path.stem) for path in self._folder.glob("[0-9]*")), default=0) + 1
        while True:
            try:
                # Waits from here on.
                os.link(new, self._folder / f"{number:08d}{_WAITS}")
                break
            except FileExistsError:
                number += 1
        new.unlink()

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return len(self._paths(_WAITS))

    def deliver(self, send: Send, end_s: float) -> int:
        """Send the messages in order, and return the number of sent messages. Raises OSError.

        The first message that does not arrive stays, and all later messages with it. After the time `end_s` of the
        monotonic clock, no message is sent.
        """
        sent = 0
        if not self._folder.is_dir():
            return sent
        with self._lock(end_s) as is_locked:
            for path in self._paths(_SENDING) if is_locked else ():
                _log.warning("a message may not have arrived, because its sender was killed: %s", _title(path))
                path.unlink()
            for path in self._paths(_WAITS) if is_locked else ():
                if (message := _decode(path)) is None or time.time() - message.time_s > _OLDEST_S:
                    _log.warning("dropped an old or damaged message, which was never sent: %s", _title(path))
                    path.unlink()
                    continue
                if time.monotonic() > end_s:
                    break
                taken = path.rename(path.with_suffix(_SENDING))
                try:
                    send(message)
                except NotSent as error:
                    _log.warning("a message waits: %s", error)
                    taken.rename(path)
                    break
                taken.unlink()
                sent += 1
        return sent

    def _paths(self, suffix: str) -> list[Path]:
        return sorted(self._folder.glob(f"[0-9]*{suffix}"))

    @contextmanager
    def _lock(self, end_s: float) -> Iterator[bool]:
        with open(self._folder / "lock", "w") as file:
            yield locks.acquire(file.fileno(), max(0.0, end_s - time.monotonic()))


def _decode(path: Path) -> Message | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Message)
    except msgspec.MsgspecError:
        return None


def _title(path: Path) -> str:
    message = _decode(path)
    return message.title if message is not None else path.name
