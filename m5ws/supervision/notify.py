"""Messages about runs to the targets of `[notify]`: URLs of apprise, and a command.

Each target has an outbox of its own. An error of a target delays its messages, and never fails a run. A message that
a target may have is never sent again.
"""

import hashlib
import logging
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from m5ws.config.reader import VARIABLE
from m5ws.config.settings import NotifySettings
from m5ws.errors import MissingExtra
from m5ws.secret_scan import masked
from m5ws.supervision.messages import Message
from m5ws.supervision.outbox import NotSent, Outbox, Send

_COMMAND_S = 10.0
_ANSWER_S = 20.0
"""The longest wait for the answer of a service, of which apprise waits 4 s."""
Mark = Literal["failed", "silent"]
"""The cause of a message: an attempt that failed, or that was silent and may go on."""
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
        self._settings, self._folder, self._root, self._environment = settings, folder, root, environment
        sends: dict[str, Send] = {url: partial(self._send_url, url) for url in settings.urls}
        if settings.command:
            sends["\0".join(settings.command)] = self._run_command
        # The name depends on the target, so that targets of other settings keep their messages.
        names = {target: hashlib.sha256(target.encode()).hexdigest()[:16] for target in sends}
        self._targets = [(Outbox(folder / names[target]), send) for target, send in sends.items()]

    def add(self, message: Message, mark: Mark = "failed", others: Sequence[Mark] = ()) -> None:
        """Add a message for all targets if `[notify] on` has its event. Raises OSError.

        On one machine, an attempt has one message of event "failed" for each `mark`, and none with one of `others`.
        """
        marks = [self._folder / f"{each}-{message.run}-{message.attempt:04d}" for each in (mark, *others)]
        if message.event not in self._settings.on or (message.event == "failed" and any(map(Path.exists, marks))):
            return
        for outbox, _ in self._targets:
            outbox.add(message)
        if message.event == "failed" and self._targets:
            marks[0].touch()

    def deliver(self, limit_s: float) -> Delivery:
        """Send all messages that wait. Raises OSError. After `limit_s` seconds, no message is sent."""
        end_s = time.monotonic() + limit_s
        sent = sum(outbox.deliver(send, end_s) for outbox, send in self._targets)
        return Delivery(sent=sent, waiting=sum(outbox.waiting for outbox, _ in self._targets))

    def test(self, message: Message) -> tuple[int, tuple[str, ...]]:
        """Send a message, which never waits, to all targets. Return the number that took it, and the errors."""
        errors = list[str]()
        for _, send in self._targets:
            try:
                send(message)
            except NotSent as error:
                errors.append(str(error))
        return len(self._targets) - len(errors), tuple(errors)

    def _send_url(self, name: str, message: Message) -> None:
        """Send a message by apprise. Raises NotSent, unless the service may have the message."""
        variable = VARIABLE.sub(r"\1", name)
        if not (url := self._environment.get(variable)):
            raise NotSent(f"the variable {variable} of [notify] urls is not set")
        try:
            from apprise import Apprise
        except ModuleNotFoundError as error:
            raise NotSent(str(MissingExtra("[notify] urls", "supervise"))) from error
        with _Warnings() as warnings:
            service = Apprise()
            if not service.add(url):
                raise NotSent(f"apprise does not know the URL in {variable}")
            for server in service:
                server.socket_read_timeout = max(server.socket_read_timeout, _ANSWER_S)
            is_sent = bool(service.notify(title=message.title, body=message.text))
        if not is_sent and warnings.is_unanswered:
            _log.warning("a message may not have arrived, because the service of %s did not answer", variable)
        elif not is_sent:
            reason = masked(" ".join(warnings.lines))
            raise NotSent(f"the service of {variable} did not take a message: {reason}")

    def _run_command(self, message: Message) -> None:
        """Give a message to the command. A command that does not end may have sent it. Raises NotSent."""
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
        except OSError as error:
            raise NotSent(f"{command[0]} cannot be started: {error}") from error
        else:
            if done.returncode:
                text = masked(done.stderr.decode(errors="replace").strip()[-500:])
                raise NotSent(f"{command[0]} ended with status {done.returncode}: {text}")


class _Warnings(logging.Handler):
    """The warnings of apprise, which are not printed: a warning about a wrong URL contains the URL.

    `is_unanswered`: a service was reached, and gave no answer. Apprise warns while it handles that exception.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.is_unanswered = False
        self._logger = logging.getLogger("apprise")

    def emit(self, record: logging.LogRecord) -> None:
        from requests import ReadTimeout

        self.lines.append(record.getMessage())
        error = sys.exc_info()[1]
        self.is_unanswered = self.is_unanswered or isinstance(error, ReadTimeout) or _is_closed(error)

    def __enter__(self) -> "_Warnings":
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True


def _is_closed(error: BaseException | None) -> bool:
    """Return True if a connection was closed while an answer was awaited: the service may have the request."""
    while error is not None:
        if isinstance(error, OSError) and any(
            frame.name == "getresponse" for frame in traceback.extract_tb(error.__traceback__)
        ):
            return True
        error = error.__context__
    return False
