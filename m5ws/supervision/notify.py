"""Messages about runs to the targets of `[notify]`: URLs of apprise, and a command.

Each target has an outbox of its own. An error of a target delays its messages, and never fails a run.
"""

import hashlib
import logging
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from m5ws.config.reader import VARIABLE
from m5ws.config.settings import NotifySettings
from m5ws.errors import MissingExtra
from m5ws.secret_scan import masked
from m5ws.supervision.messages import Event, Message
from m5ws.supervision.outbox import Outbox, Send

_COMMAND_S = 10.0
_log = logging.getLogger(__name__)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages that were sent, and the number that wait."""

    sent: int
    waiting: int


class Notifier:
    """Sends messages to the targets of a workspace. `folder` has the outboxes.

    The command runs in `root`. The `environment` has the URLs.
    """

    def __init__(self, settings: NotifySettings, folder: Path, root: Path, environment: Mapping[str, str]) -> None:
        self._settings, self._root, self._environment = settings, root, environment
        sends: dict[str, Send] = {url: partial(self._send_url, url) for url in settings.urls}
        if settings.command:
            sends["\0".join(settings.command)] = self._run_command
        self._targets = [(Outbox(folder / _name(target)), send) for target, send in sends.items()]

    def is_wanted(self, event: Event) -> bool:
        """Return True if an event has a message, and the message a target."""
        return bool(self._targets) and (event == "test" or event in self._settings.on)

    def add(self, message: Message) -> None:
        """Add a message for all targets, without the URLs of targets. Raises OSError."""
        text = msgspec.json.encode(message).decode()
        for url in filter(None, (self._environment.get(VARIABLE.sub(r"\1", name)) for name in self._settings.urls)):
            text = text.replace(msgspec.json.encode(url).decode()[1:-1], "***")
        for outbox, _ in self._targets:
            outbox.add(msgspec.json.decode(text, type=Message))

    def deliver(self, limit_s: float) -> Delivery:
        """Send all messages that wait. Raises OSError. After `limit_s` seconds, no message is sent."""
        end_s = time.monotonic() + limit_s
        sent = sum(outbox.deliver(send, end_s) for outbox, send in self._targets)
        return Delivery(sent=sent, waiting=sum(outbox.waiting for outbox, _ in self._targets))

    def _send_url(self, name: str, message: Message) -> bool:
        """Send a message by apprise. A failure of apprise means that the message did not arrive."""
        variable = VARIABLE.sub(r"\1", name)
        url = self._environment.get(variable)
        if not url:
            _log.warning("a message waits, because the variable %s of [notify] urls is not set", variable)
            return False
        try:
            from apprise import Apprise
        except ModuleNotFoundError:
            _log.warning("a message waits: %s", MissingExtra("[notify] urls", "supervise"))
            return False
        with _Lines() as lines:
            service = Apprise()
            if not service.add(url):
                _log.warning("a message waits, because apprise does not know the URL in %s", variable)
                return False
            is_sent = bool(service.notify(title=message.title, body=message.text))
        if not is_sent:
            reason = masked(" ".join(lines.lines).replace(url, "***"))
            _log.warning("a message waits, because the service of %s did not take it: %s", variable, reason)
        return is_sent

    def _run_command(self, message: Message) -> bool:
        """Give a message to the command. A command that does not end may have sent it."""
        command = self._settings.command
        try:
            done = subprocess.run(
                command,
                input=msgspec.json.encode(message),
                capture_output=True,
                timeout=_COMMAND_S,
                cwd=self._root,
                env=self._environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            _log.warning("%s was ended after %.0f s: a message may not have arrived", command[0], _COMMAND_S)
            return True
        except OSError as error:
            _log.warning("a message waits, because %s cannot be started: %s", command[0], error)
            return False
        if done.returncode:
            text = masked(done.stderr.decode(errors="replace").strip()[-500:])
            _log.warning("a message waits, because %s ended with status %d: %s", command[0], done.returncode, text)
        return done.returncode == 0


class _Lines(logging.Handler):
    """The warnings of apprise, which are not printed: a warning about a wrong URL contains the URL."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._logger = logging.getLogger("apprise")

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> "_Lines":
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True


def _name(target: str) -> str:
    """Return the name of a target's folder: targets of other settings keep their messages."""
    return hashlib.sha256(target.encode()).hexdigest()[:16]
