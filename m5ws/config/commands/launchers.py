"""Commands as users type them: a Python script, a launcher that starts one, or any other program.

A script is the first word that ends in `.py`, or the module after `-m`. A launcher runs as typed, with the module of a
rank in the script's place. Its options are neither read nor changed, so every version of a launcher works.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

import msgspec

from m5ws.errors import UsageError
from m5ws.records.run import Starter

RANK = "m5ws.training.rank"
"""The module that runs a script as one rank."""

_PYTHON = re.compile(r"python[\d.]*")
_PROGRAMS: dict[tuple[str, ...], Starter] = {
    ("torchrun",): "torchrun",
    ("deepspeed",): "deepspeed",
    ("accelerate-launch",): "accelerate",
    ("accelerate", "launch"): "accelerate",
    ("composer",): "composer",
}
_MODULES = {
    "torch.distributed.launch": "torchrun",
    "torch.distributed.run": "torchrun",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate-launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "composer.cli": "composer",
    "composer.cli.launcher": "composer",
}
"""Modules that are launchers, as their programs. The last launcher of a program is started in its place."""
_MODULE_OPTIONS = ("-m", "--module", "--module_mode")


class Command(msgspec.Struct, frozen=True):
    """A command. `launcher` has the words before the script, `script` the other words: the script, or `-m` and its
    module.

    `starter` is None for a script without a launcher. A program that is no launcher has no `script`.
    """

    starter: Starter | None
    launcher: tuple[str, ...]
    script: tuple[str, ...]


def read(command: Sequence[str]) -> Command:
    """Return a command in its parts. A launcher without a script has an empty `script`; Python is a program then."""
    if not command or is_script(command[0]):
        return Command(None, (), tuple(command))
    starter, count = _launcher(command)
    place = _find_script(command, count) if starter is not None else None
    if place is None:
        return Command("command" if starter in (None, "python") else starter, tuple(command), ())
    script = command[place:] if is_script(command[place]) else ("-m", *command[place + 1 :])
    return Command(starter, tuple(command[:place]), tuple(script))


def refuse_unusable(command: Sequence[str]) -> None:
    """Raise UsageError for a launcher without a script, and for one of another environment, which may lack m5ws."""
    typed = read(command)
    if typed.starter == "command":
        return
    if not typed.script[typed.script[:1] == ("-m",) :]:
        raise UsageError(
            f"no script in `{shlex.join(command)}`: no word ends in .py, and no module follows -m",
            hint="Give the script, or its module directly after -m.",
        )
    if typed.starter is not None and not _is_ours(command[0]):
        raise UsageError(
            f"ranks are run by the Python that runs m5ws, {sys.executable}, and {command[0]} is not of its environment",
            hint="Install m5ws in the environment of that program, and start m5ws there.",
        )


def is_script(word: str) -> bool:
    """Return True for the first word of a script's own command."""
    return word == "-m" or word.endswith(".py")


def split_rank(words: Sequence[str]) -> tuple[str, ...]:
    """Return a script's command from a rank's arguments. Arguments that a launcher put before the script follow it."""
    place = _find_script(words, 0)
    if place is None:
        return tuple(words)
    count = 2 if words[place] == "-m" else 1
    return (*words[place : place + count], *words[:place], *words[place + count :])


def argv(
    command: Sequence[str], starter: Starter, nproc: int | None, python: str, *, is_alone: bool = True
) -> tuple[str, ...]:
    """Return the command line of a launch. `python` starts the ranks, and its environment has the launchers.

    `nproc` is the number of processes on this node. Unless the node `is_alone`, variables name the other nodes.
    """
    typed = read(command)
    if typed.starter == "command":
        return (python, "-m", RANK, "--", *command)
    if typed.starter is not None:
        option = "--module" if typed.starter == "deepspeed" else "-m"
        return (*_program(typed.launcher[0], python), *typed.launcher[1:], option, RANK, *typed.script)
    alone = ("--standalone",) if is_alone else ()
    torchrun = ("-m", "torch.distributed.run", *alone, "--nproc-per-node", str(nproc))
    return (python, *(() if starter == "python" else torchrun), "-m", RANK, *typed.script)


def program_name(word: str) -> str:
    """Return the name of a program, without its folder; `python` for every version."""
    name = PurePath(word).name
    return "python" if _PYTHON.fullmatch(name) else name


def _launcher(command: Sequence[str]) -> tuple[Starter | None, int]:
    """Return the launcher that a command begins with, and the number of its words; None for another program."""
    name, count = program_name(command[0]), 1
    if name == "python":
        place = _find_script(command, 1)
        module = command[place + 1] if place is not None and command[place] == "-m" else ""
        if place is None or module not in _MODULES:
            return "python", 1
        name, count = _MODULES[module], place + 2
    words = (name, *command[count : count + 1])
    for program, starter in _PROGRAMS.items():
        if words[: len(program)] == program:
            return starter, count + len(program) - 1
    return None, 0


def _find_script(words: Sequence[str], begin: int) -> int | None:
    """Return the place of the script, or of the option before its module."""
    for place, word in enumerate(words[begin:], begin):
        if word.endswith(".py"):
            return place
        if word in _MODULE_OPTIONS and place + 1 < len(words) and not words[place + 1].startswith("-"):
            return place
    return None


def _is_ours(word: str) -> bool:
    """Return True for a program without a folder or in this Python's folder, if its name has no other version."""
    folder, version = os.path.dirname(word), PurePath(word).name.removeprefix("python")
    # A link to the folder is the same environment; one to the interpreter alone is not.
    is_here = not folder or os.path.realpath(folder) == os.path.realpath(os.path.dirname(sys.executable))
    versions = ("", str(sys.version_info.major), f"{sys.version_info.major}.{sys.version_info.minor}")
    return is_here and (program_name(word) != "python" or version in versions)


def _program(word: str, python: str) -> tuple[str, ...]:
    """Return the words that start a launcher in the environment of `python`: its program there, or else its module.

    A program of the same name in another folder would start the ranks with another Python.
    """
    name = program_name(word)
    if name == "python":
        return (python,)
    own = Path(python).with_name(name)
    module = next(module for module, program in reversed(_MODULES.items()) if program == name)
    return (str(own),) if own.exists() else (python, "-m", module)
