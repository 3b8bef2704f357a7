"""`m5ws` started as a process by parents of every kind."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SNAPSHOT = [sys.executable, "-m", "m5ws", "snapshot"]


def _run(place: Path, argv: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, cwd=place, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_an_ignored_sigchld_of_the_parent_changes_no_result(place: Path) -> None:
    """Where SIGCHLD is ignored, the exit status of git is lost, and a failure looks like an empty answer."""
    words = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    usual = _run(place, _SNAPSHOT)
    for _ in range(2):
        ignoring = _run(place, [sys.executable, "-c", words, *_SNAPSHOT])
        assert (ignoring.returncode, ignoring.stdout) == (0, usual.stdout), ignoring.stderr
    (place / ".git" / "index").write_bytes(b"damaged")
    assert _run(place, [sys.executable, "-c", words, *_SNAPSHOT]).returncode == 2


@pytest.mark.parametrize("words", [[], ["--help"], ["--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_at_stdout_is_an_error(place: Path, words: list[str], unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run([*_SNAPSHOT, *words], cwd=place, stdout=full, stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr.count(b"No space left")) == (2, 1), done.stderr


def test_git_inherits_no_descriptor(place: Path, tmp_path: Path) -> None:
    """A lock that a parent holds would stay held by a git that outlives m5ws."""
    log, wrapper = tmp_path / "log", tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nls /proc/$$/fd >> {log}\nexec {shutil.which("git")} "$@"\n')
    wrapper.chmod(0o755)
    opened = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    held = fcntl.fcntl(opened, fcntl.F_DUPFD, 1000)
    path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(_SNAPSHOT, cwd=place, env=os.environ | {"PATH": path}, pass_fds=[held], check=True)
    os.close(held)
    os.close(opened)
    assert log.exists() and str(held) not in log.read_text().split()
