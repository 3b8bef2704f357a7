"""Commands in pages, with lines of their output: they are run as typed, and print these lines."""

import os
import re
import signal
import subprocess
from pathlib import Path

import msgspec

_STATUS = re.compile(r"\[exit status (\d+)\]")
_STOP = "^C"


class Command(msgspec.Struct, frozen=True):
    """A command of a transcript, with lines of its output in their order."""

    text: str
    output: tuple[str, ...]
    status: int


def read(page: Path, *, is_whole: bool = True) -> list[Command]:
    """Return the commands of a page, in order. `is_whole`: each indented block of the page has commands."""
    commands = []
    blocks = re.findall(r"(?:^    .*\n)+", page.read_text(), re.MULTILINE)
    for block in blocks if is_whole else [block for block in blocks if block.startswith("    $ ")]:
        assert block.startswith("    $ "), f"{page.name}: a block does not begin with a command: {block}"
        for part in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            text, *output = (line.strip() for line in part.splitlines())
            status = _STATUS.fullmatch(output[-1]) if output else None
            commands.append(Command(text, tuple(output[:-1] if status else output), int(status[1]) if status else 0))
    return commands


def check(command: Command, folder: Path, environment: dict[str, str]) -> None:
    """Run a command, and compare its exit status and output. `…` matches any text of a line.

    A command with the last line `^C` is stopped by SIGINT after its last line before.
    """
    is_stopped = command.output[-1:] == (_STOP,)
    status, printed = _run(command, folder, environment, is_stopped=is_stopped)
    assert is_stopped or status == command.status, f"$ {command.text}\n{printed[-6000:]}"
    lines = iter(printed.splitlines())
    for expected in command.output[: -1 if is_stopped else None]:
        assert any(fullmatch(expected, line) for line in lines), (
            f"$ {command.text}\nno line (in this order): {expected}\n{printed[-6000:]}"
        )


def _run(command: Command, folder: Path, environment: dict[str, str], *, is_stopped: bool) -> tuple[int, str]:
    """Return the exit status and the output of a command."""
    with subprocess.Popen(
        ["bash", "-c", command.text],
        cwd=folder, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if is_stopped and fullmatch(command.output[-2], line):
                os.killpg(process.pid, signal.SIGINT)
                is_stopped = False
        return process.wait(), printed


def fullmatch(expected: str, line: str) -> bool:
    """Return True if a line is the expected line, in which `…` is any text."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), line.strip()) is not None
