"""How a command ends by its error: a condition of the machine is the user's, everything else is a bug of m5ws."""

import errno

import pytest

from m5ws import cli
from m5ws.cli import ls

_BUG = "bug in m5ws"


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ls.command, "callback", fail)


@pytest.mark.parametrize("status", [0, 1, 2, None, "a message"])
def test_a_library_that_ends_the_process_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int | str | None
) -> None:
    _raising(monkeypatch, SystemExit(status))
    assert cli.main(["ls"]) == cli.BUG
    assert _BUG in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "Permission denied", "/somewhere"), TimeoutError("timed out")]
)
def test_a_machine_condition_prints_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError
) -> None:
    _raising(monkeypatch, error)
    assert cli.main(["ls"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error:") and _BUG not in printed and "Traceback" not in printed


def test_another_error_of_a_system_call_is_a_bug_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raising(monkeypatch, OSError(errno.EBADF, "Bad file descriptor"))
    assert cli.main(["ls"]) == cli.BUG
    printed = capsys.readouterr().err
    assert _BUG in printed and "Traceback" in printed
