"""`m5ws demo`: a small GPT is snapshotted, trained, reproduced and compared, by commands that anybody can type.

`plan` returns the commands. `execute` prints each command and runs it in a process.
"""

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.errors import M5Error, MissingExtra, UsageError

TEMPLATES = ("gpt-fsdp", "gpt-deepspeed")
_QUIET = ("m5ws", "-q")
"""A terminal still shows the progress, in one line."""


class DemoFailed(M5Error):
    """A command of the demo ended with an unexpected status."""

    exit_code = 1


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's new directory, templates, and text (None: Python's standard library).

    `store` is the store of the workspaces; None is a directory in each.
    """

    directory: Path
    templates: tuple[str, ...] = TEMPLATES
    text: Path | None = None
    nproc: int = 2
    store: str | None = None


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command, run in `directory`, which must end with status `expect`.

    `{name}` in `argv` stands for an id: the last word in the first line of an earlier command with that name in
    `keeps`. `says` is printed before the command.
    """

    argv: tuple[str, ...]
    directory: Path
    says: str = ""
    keeps: str | None = None
    expect: int = 0

    def typed(self, before: Path | None, ids: Mapping[str, str]) -> tuple[str, ...]:
        """Return the lines to type in directory `before`. An id that is not in `ids` is its name in capitals."""
        move = () if self.directory == before else (f"cd {shlex.quote(str(self.directory))}",)
        return (*move, shlex.join(_filled(self.argv, ids)))


class DemoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The commands in order."""

    options: DemoOptions
    commands: tuple[Command, ...]

    def lines(self) -> list[str]:
        """Return all lines to type. Ids, which are not known yet, are their names in capitals."""
        directories = [None, *(command.directory for command in self.commands)]
        steps = zip(self.commands, directories, strict=False)
        return [line for command, before in steps for line in command.typed(before, {})]


def free_directory(parent: Path) -> Path:
    """Return the first of `m5ws-demo`, `m5ws-demo-2`, … that does not exist in `parent`."""
    names = (f"m5ws-demo-{number}" if number > 1 else "m5ws-demo" for number in range(1, 1000))
    return next(parent / name for name in names if not (parent / name).exists())


def plan(options: DemoOptions) -> DemoPlan:
    """Return the commands. Raises UsageError for a directory in use or an unknown text, MissingExtra, M5Error."""
    root = options.directory.absolute()
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f"{root} already exists", hint="The demo needs a new directory: choose another name.")
    if options.text is not None and not options.text.exists():
        raise UsageError(f"no such file or folder: {options.text}")
    _check_installed("gpt-deepspeed" in options.templates)
    commands = [command for name in options.templates for command in _template(name, root, options)]
    return DemoPlan(options=options, commands=tuple(commands))


def execute(planned: DemoPlan, show: Callable[[str], None]) -> tuple[Path, ...]:
    """Run the commands, each printed before its output, and return the new workspaces.

    `show` prints a line on stdout. Raises DemoFailed.
    """
    root = planned.options.directory.absolute()
    root.mkdir(parents=True, exist_ok=True)
    ids: dict[str, str] = {}
    before: Path | None = None
    for command in planned.commands:
        if command.says:
            show(f"\n# {command.says}")
        for line in command.typed(before, ids):
            show(f"$ {line}")
        _run(command, ids, show)
        before = command.directory
    return tuple(root / name for name in planned.options.templates)


def _check_installed(deepspeed: bool) -> None:
    """Raise MissingExtra or M5Error now for requirements of later commands."""
    extras = {"tokenizers": "templates", "torch": "train", "mlflow": "mlflow"}
    if deepspeed:
        extras["deepspeed"] = "deepspeed"
    for module, extra in extras.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("the demo", extra)
    if shutil.which("git") is None:
        raise M5Error("git is not installed", hint="The demo creates a git repository. Install git.")


def _template(name: str, root: Path, options: DemoOptions) -> Iterator[Command]:
    """Yield the commands of one template: all of them for the first one, fewer for the others."""
    workspace, nproc = root / name, ("--nproc", str(options.nproc))
    first = name == options.templates[0]
    how = "DeepSpeed ZeRO, its optimizer on the CPU" if name == "gpt-deepspeed" else "FSDP2"
    # The others only show another trainer, so they are shorter.
    short = () if first else ("--set", "steps=12")

    def of_first(words: str) -> str:
        return words if first else ""

    kept = ("--store", options.store) if options.store else ()
    yield Command(
        says=f"A project in git: a small GPT, trained with {how}." if first else f"The same with {how}.",
        argv=("m5ws", "init", "--template", name, "--git", *kept, name),
        directory=root,
    )
    text = () if options.text is None else (str(options.text.absolute()),)
    yield Command(
        says=of_first("Prepare the data: real text, and a tokenizer trained on it."),
        argv=("python", "prepare.py", *text),
        directory=workspace,
    )
    yield Command(
        says=of_first("Pin code, config, tokenizer, data and environment. The digest covers every byte."),
        argv=("m5ws", "snapshot", "-m", "first"),
        directory=workspace,
        keeps="snapshot",
    )
    yield Command(
        says=of_first(f"Train from the snapshot, on {options.nproc} processes."),
        argv=(*_QUIET, "run", "{snapshot}", *nproc, *short),
        directory=workspace,
        keeps="run",
    )
    yield Command(
        says=of_first("Train again, and compare every step and the whole state, bit for bit."),
        argv=(*_QUIET, "reproduce", "{run}"),
        directory=workspace,
    )
    if not first:
        return
    yield Command(
        says="Train again with one number changed. The verdict names the change and the first step that differs.",
        argv=(*_QUIET, "reproduce", "{run}", "--set", "learning_rate=0.002"),
        directory=workspace,
        keeps="replay",
        expect=1,
    )
    yield Command(
        says="The inputs of the two runs, side by side.",
        argv=("m5ws", "diff", "{run}", "{replay}"),
        directory=workspace,
    )


def _run(command: Command, ids: dict[str, str], show: Callable[[str], None]) -> None:
    """Run a command to its end, pass on its output, and keep the id that it prints. Raises DemoFailed."""
    argv = _executable(_filled(command.argv, ids))
    if command.keeps is None:
        status = subprocess.run(argv, cwd=command.directory, check=False).returncode
    else:
        # stderr is not redirected, so that progress is live on a terminal.
        with subprocess.Popen(argv, cwd=command.directory, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                if number == 0:
                    ids[command.keeps] = line.split()[-1] if line.strip() else ""
                show(line.rstrip("\n"))
        status = process.returncode
    if status != command.expect:
        raise DemoFailed(
            f"`{shlex.join(_filled(command.argv, ids))}` ended with status {status}, not {command.expect}",
            hint=f"Look at its files in {command.directory}.",
        )


def _filled(argv: Sequence[str], ids: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(ids.get(word[1:-1], word[1:-1].upper()) if _is_id(word) else word for word in argv)


def _is_id(word: str) -> bool:
    return word.startswith("{") and word.endswith("}")


def _executable(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with the programs of this installation, whatever is on PATH."""
    programs = {"m5ws": (sys.executable, "-P", "-m", "m5ws"), "python": (sys.executable,)}
    return (*programs.get(argv[0], argv[:1]), *argv[1:])
