"""Messages that wait: each is sent at most once, in order, and exactly once if no sender is killed."""

import itertools
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from m5ws.config.settings import NotifySettings
from m5ws.supervision import notify
from m5ws.supervision.messages import Message
from m5ws.supervision.notify import Delivery, Notifier
from m5ws.supervision.outbox import NotSent, Outbox
from tests.support.network import webhook

_DAY_S = 86_400.0


class _Killed(BaseException):
    """The end of a process while it sends."""


def _message(number: int, time_s: float | None = None) -> Message:
    now_s = time.time() if time_s is None else time_s
    return Message(event="failed", time_s=now_s, title=f"{number}", text="x", run=f"{number}", attempt=1)


@example(["add", "add", "killed after", "deliver"])
@example(["add", "add", "killed before", "deliver"])
@example(["add", "down", "deliver", "add", "deliver"])
@given(st.lists(st.sampled_from(["add", "up", "down", "deliver", "killed before", "killed after"]), max_size=30))
def test_each_message_is_sent_once_and_in_order_whatever_happens(turns: list[str]) -> None:
    state, received, numbers = "up", list[int](), itertools.count()

    def send(message: Message) -> None:
        if state not in ("killed before", "down"):
            received.append(int(message.title))
        if state.startswith("killed"):
            raise _Killed
        if state == "down":
            raise NotSent("away")

    with TemporaryDirectory() as folder:
        outbox = Outbox(Path(folder) / "outbox")
        for turn in [*turns, "up", "deliver"]:
            if turn == "add":
                outbox.add(_message(next(numbers)))
            elif turn == "deliver":
                try:
                    outbox.deliver(send, time.monotonic() + 60)
                except _Killed:
                    state = "up"
            else:
                state = turn
        assert outbox.waiting == 0
    assert received == sorted(set(received))
    if not any(turn.startswith("killed") for turn in turns):
        assert received == list(range(next(numbers)))


def test_a_message_waits_for_a_week_and_no_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outbox, sent = Outbox(tmp_path / "outbox"), list[str]()

    def send(message: Message) -> None:
        sent.append(message.title)

    for number, days in enumerate((8.0, 6.0)):
        outbox.add(_message(number, time.time() - days * _DAY_S))
    assert outbox.deliver(send, time.monotonic() + 60) == 1
    assert sent == ["1"]
    assert "never sent: 0" in caplog.text


def _notifier(folder: Path, url: str, *command: str) -> Notifier:
    settings = NotifySettings(urls=("${HOOK}",), command=command)
    return Notifier(settings, folder, folder.parent, {"HOOK": url, "PATH": "/usr/bin:/bin"})


def test_a_service_that_is_away_for_a_day_gets_each_message_once_and_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "copy.jsonl"
    with webhook.running() as server:
        notifier = _notifier(tmp_path / "notify", server.url, "sh", "-c", f"cat >> {copy}; echo >> {copy}")
        for hour in range(24):
            # A message each second hour. The service refuses, or does not answer at all.
            server.status = 503 if hour % 3 else 500
            if hour % 2 == 0:
                notifier.add(_message(hour, time.time() - (24 - hour) * 3600))
            assert notifier.deliver(60.0).waiting == hour // 2 + 1
        assert server.asked == 24, "a message that waits holds later messages back"
        assert "token" not in caplog.text
        server.status = 200
        assert notifier.deliver(60.0) == Delivery(sent=12, waiting=0)
        assert [body["title"] for body in server.received] == [str(hour) for hour in range(0, 24, 2)]
        unreachable = server.url
    lines = copy.read_text().splitlines()
    assert [line.split('"title":"')[1].split('"')[0] for line in lines] == [str(hour) for hour in range(0, 24, 2)]
    away = _notifier(tmp_path / "notify", unreachable)
    away.add(_message(99))
    assert away.deliver(60.0).waiting == 1, "its port is closed"


def test_a_target_that_fails_holds_no_other_target_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with webhook.running() as server:
        notifier = _notifier(tmp_path / "notify", server.url, "sh", "-c", "echo no pager >&2; exit 3")
        notifier.add(_message(1))
        assert notifier.deliver(60.0).waiting == 1
        assert len(server.received) == 1
    assert "ended with status 3: no pager" in caplog.text
    unset = Notifier(NotifySettings(urls=("${HOOK}",)), tmp_path / "other", tmp_path, {})
    unset.add(_message(2))
    assert unset.deliver(60.0).waiting == 1
    assert "HOOK of [notify] urls is not set" in caplog.text


def test_a_message_waits_where_apprise_is_not_installed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    notifier = _notifier(tmp_path / "notify", "json://127.0.0.1:9/x")
    notifier.add(_message(1))
    assert notifier.deliver(60.0).waiting == 1
    assert "needs the extra 'supervise'" in caplog.text


@pytest.mark.parametrize(
    ("limit_s", "status", "warnings"), [(20.0, 200, 0), (0.1, 200, 2), (20.0, 0, 2)], ids=["slow", "silent", "closing"]
)
def test_a_service_that_answers_late_or_never_gets_each_message_once_and_in_order(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float,
    status: int,
    warnings: int,
) -> None:
    monkeypatch.setattr(notify, "_ANSWER_S", limit_s)
    with webhook.running() as server:
        notifier = _notifier(tmp_path / "notify", f"{server.url}?rto=0.1")
        server.delay_s, server.status = 1.0, status
        for number in range(2):
            notifier.add(_message(number))
        assert notifier.deliver(60.0) == Delivery(sent=2, waiting=0)
        assert notifier.deliver(60.0) == Delivery(sent=0, waiting=0)
        assert [body["title"] for body in server.received] == ["0", "1"]
    assert caplog.text.count("may not have arrived") == warnings
    assert "token" not in caplog.text


def test_an_attempt_fails_once_and_an_event_that_nobody_wants_has_no_message(tmp_path: Path) -> None:
    notifier = Notifier(NotifySettings(command=("false",), on=("failed",)), tmp_path / "notify", tmp_path, {})
    for message in (_message(1), _message(1), Message(event="finished", time_s=time.time(), title="x", text="x")):
        notifier.add(message)
    assert notifier.deliver(0.0).waiting == 1


def test_an_attempt_that_was_silent_and_fails_later_has_a_message_of_its_failure(tmp_path: Path) -> None:
    notifier = Notifier(NotifySettings(command=("false",), on=("failed",)), tmp_path / "notify", tmp_path, {})
    waiting = []
    for mark, others in (("silent", ("failed",)), ("failed", ("silent",)), ("failed", ()), ("silent", ("failed",))):
        notifier.add(_message(1), mark, others)  # type: ignore[arg-type]
        waiting.append(notifier.deliver(0.0).waiting)
    assert waiting == [1, 1, 2, 2], "the second is the end that a look finds after its own message"


@pytest.mark.parametrize(
    ("settings", "environment", "problem"),
    [
        (NotifySettings(urls=("${HOOK}",)), {}, "the variable HOOK of [notify] urls is not set"),
        (NotifySettings(urls=("${HOOK}",)), {"HOOK": "nothing"}, "apprise does not know the URL in HOOK"),
        (NotifySettings(urls=("${HOOK}",)), {"HOOK": "json://127.0.0.1:9/x"}, "the service of HOOK did not take"),
        (NotifySettings(command=("false",)), {"PATH": "/usr/bin:/bin"}, "false ended with status 1"),
        (NotifySettings(command=("/nowhere",)), {}, "/nowhere cannot be started"),
    ],
)
def test_a_test_message_never_waits(
    tmp_path: Path, settings: NotifySettings, environment: dict[str, str], problem: str
) -> None:
    notifier = Notifier(settings, tmp_path / "notify", tmp_path, environment)
    sent, errors = notifier.test(Message(event="test", time_s=time.time(), title="x", text="x"))
    assert sent == 0 and len(errors) == 1 and problem in errors[0]
    assert notifier.deliver(60.0) == Delivery(sent=0, waiting=0)
