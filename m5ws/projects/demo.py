"""`m5ws demo`: a small GPT is trained, reproduced and changed, by commands that anybody can type.

`plan` returns the commands. `execute` prints each command and runs it in a process.
"""

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from m5ws.errors import M5Error, MissingExtra, UsageError

_RUN = "RUN"
"""Stands for the id of the run in a command."""
_REQUIRED = {"tokenizers": "templates", "torch": "train", "mlflow": "mlflow"}
"""Modules that later commands import, and their extras."""


class DemoFailed(M5Error):
    """A command of the demo ended with an unexpected status."""

    exit_code = 1


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command, which must end with status `expect`. `title` is printed before it.

    The first line of a command that `prints_run` is the id of the run.
    """

    argv: tuple[str, ...]
    title: str = ""
    prints_run: bool = False
    expect: int = 0


def free_directory(parent: Path) -> Path:
    """Return the first of `m5ws-demo`, `m5ws-demo-2`, … that does not exist in `parent`."""
    names = (f"m5ws-demo-{number}" if number > 1 else "m5ws-demo" for number in range(1, 1000))
    return next(parent / name for name in names if not (parent / name).exists())


def plan(root: Path, text: Path | None = None) -> tuple[Command, ...]:
    """Return the commands of a demo in the new directory `root`, on a text (None: Python's standard library).

    The first command makes the directory, and the others run in it. Raises UsageError for a directory in use or an
    unknown text, MissingExtra, M5Error.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f"{root} already exists", hint="The demo needs a new directory: choose another name.")
    if text is not None and not text.exists():
        raise UsageError(f"no such file or folder: {text}")
    for module, extra in _REQUIRED.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("the demo", extra)
    if shutil.which("git") is None:
        raise M5Error("git is not installed", hint="The demo creates a git repository. Install git.")
    reproduce = ("m5ws", "-q", "reproduce", _RUN)
    return (
        Command(
            title="A project in git: a small GPT, real text, and a tokenizer trained on it.",
            argv=("m5ws", "-q", "init", "--template", "gpt-fsdp", "--git", str(root)),
        ),
        Command(argv=("python", "prepare.py", *([str(text.absolute())] if text is not None else []))),
        Command(
            title="Pin code, config, tokenizer, data and environment, and train from them on two processes.",
            argv=("m5ws", "-q", "run", "--nproc", "2"),
            prints_run=True,
        ),
        Command(title="Train again, and compare every step and the whole state, bit for bit.", argv=reproduce),
        Command(
            title="Train again with one number changed. The verdict names it, and the first step that differs.",
            argv=(*reproduce, "--set", "learning_rate=0.002"),
            expect=1,
        ),
    )


def execute(commands: Sequence[Command], root: Path, show: Callable[[str], None]) -> None:
    """Run the commands, each printed before its output. `show` prints a line on stdout. Raises DemoFailed."""
    run = _RUN
    for number, command in enumerate(commands):
        if command.title:
            show(f"\n# {command.title}")
        if number == 1:
            show(f"$ cd {shlex.quote(str(root))}")
        argv = [run if word == _RUN else word for word in command.argv]
        show(f"$ {shlex.join(argv)}")
        status, first = _run(argv, root if number else Path.cwd(), show)
        if status != command.expect:
            raise DemoFailed(
                f"`{shlex.join(argv)}` ended with status {status}, not {command.expect}",
                hint=f"Look at its files in {root}.",
            )
        run = first if command.prints_run else run


def _run(argv: Sequence[str], directory: Path, show: Callable[[str], None]) -> tuple[int, str]:
    """Run a command with the programs of this installation, pass on its output, and return its status and first line.

    stderr is not redirected, so that progress is live on a terminal.
    """
    programs = {"m5ws": (sys.executable, "-P", "-m", "m5ws"), "python": (sys.executable,)}
    own = (*programs[argv[0]], *argv[1:])
    lines = list[str]()
    with subprocess.Popen(own, cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            show(lines[-1])
    return process.returncode, "".join(lines[:1])
