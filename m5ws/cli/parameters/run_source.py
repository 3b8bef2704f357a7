"""The options of `m5ws run` that select its run: a new one, the next attempt of an existing one, or a fork."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import click
import msgspec
from click.core import ParameterSource

from m5ws.cli import detached
from m5ws.cli.parameters import names
from m5ws.cli.parameters.grouped import grouped
from m5ws.cli.parameters.script import script
from m5ws.cli.snapshot import start
from m5ws.cli.terminal import output
from m5ws.config.commands import launchers
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.attempts.planning import RunOptions
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_FOR_RESUME = frozenset(("take_over", "from_scratch", "at"))
"""The options that a new run would ignore."""
_ANY = frozenset(("resume", "parallel", "env", "detach", "dry_run", "no_progress", "as_json"))
"""The other options that a resumed run takes. All else is as at the run's start, so other options would be ignored."""

options = grouped(
    click.option("-m", "--message", type=names.Text(), metavar="TEXT", help="Message for the new snapshot."),
    click.option(
        "--resume", type=names.Id(("run", "sweep")), metavar="RUN", help="Resume RUN from its newest checkpoint."
    ),
    click.option("--from-scratch", is_flag=True, help="With --resume: restore nothing, and restart at the first step."),
    click.option("--at", metavar="TIME", help="With --resume: restore the output files of this earlier moment."),
    click.option("--take-over", is_flag=True, help="With --resume: stop an attempt that may be alive elsewhere."),
    click.option(
        "--from",
        "from_",
        type=names.Id(("run",)),
        metavar="RUN[@STEP]",
        help="Fork: start a new run from a checkpoint, with the given changes.",
    ),
    click.option(
        "--restart",
        multiple=True,
        type=click.Choice(["data", "schedule", "generators"]),
        help="With --from: reset this part of the state; may be repeated.",
    ),
    click.option("--why", type=names.Text(), metavar="TEXT", help="Note with the expectation of the new run."),
    click.option(
        "--sweep",
        multiple=True,
        type=names.Text(),
        metavar="KEY=VALUES",
        help="Start a run for each value of KEY; may be repeated.",
    ),
    click.option(
        "--parallel",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="With --sweep, or --resume of a sweep: number of runs at the same time (default: 1).",
    ),
)


class RunArguments(TypedDict):
    """The values of `options`, and of the other parameters that select a run."""

    snapshot: str | None
    overrides: tuple[str, ...]
    message: str | None
    resume: str | None
    take_over: bool
    from_scratch: bool
    at: str | None
    from_: str | None
    restart: tuple[Literal["data", "schedule", "generators"], ...]
    why: str | None
    sweep: tuple[str, ...]
    parallel: int
    planned: Path | None


def select(workspace: "Workspace", repo: "Repository", given: RunArguments, launch: "RunOptions") -> "Run":
    """Return the run to execute, or the one that a sweep is created from.

    Raises UsageError, NotFound, AmbiguousId and the errors of a new snapshot.
    """
    from m5ws.agent import recovery
    from m5ws.attempts import planning as operation

    if given["planned"] is not None:
        return detached.load_planned(given["planned"])
    if given["resume"] is not None:
        run_id = names.find_id(repo, given["resume"], "run")
        recovery.deliver_run(repo, run_id, workspace.home, workspace.work_root, workspace.kept, output.print_note)
        run = operation.resumed(repo, run_id)
        if not given["take_over"]:
            recovery.refuse_elsewhere(repo, run.id, workspace.home)
        return run
    if given["from_"] is not None:
        return _fork(repo, given["from_"], given, launch)
    spec = operation.spec(workspace.settings.run, with_import_path(workspace, launch))
    pinned = start(workspace, repo, given["snapshot"], given["overrides"], given["message"])
    return operation.new_run(pinned, spec, name=launch.name)


def with_import_path(workspace: "Workspace", launch: "RunOptions") -> "RunOptions":
    """Return options with the caller's folder, and the shell's PYTHONPATH, as far as they are in the workspace.

    The PYTHONPATH is printed.
    """
    from m5ws.launch import import_path

    launch = msgspec.structs.replace(launch, directory=_find_directory(workspace.root, launch.command))
    recorded = import_path.recorded(workspace.settings.run.environment, workspace.root, workspace.environment)
    for name, value in recorded.items():
        output.print_note(f"{name}={value} of this shell is recorded with the run")
    return msgspec.structs.replace(launch, environment=recorded)


def _find_directory(root: Path, command: tuple[str, ...]) -> str | None:
    """Return the caller's folder for a typed command, relative to the workspace; None if it lacks the script.

    Any other program than Python's starts in the caller's folder, as in a shell.
    """
    here = Path(click.get_current_context().find_root().params.get("directory") or Path()).resolve()
    words = launchers.read(command).script
    script = words[1].replace(".", os.sep) if words[:1] == ("-m",) else "".join(words[:1])
    places = (here / script, here / f"{script}.py")
    if not command or not here.is_relative_to(root.resolve()) or not any(place.exists() for place in places):
        return None
    return str(here.relative_to(root.resolve()))


def _fork(repo: "Repository", checkpoint: str, given: RunArguments, launch: "RunOptions") -> "Run":
    """Return a new run that starts from a checkpoint, and print its differences from its parent."""
    from m5ws.attempts import fork
    from m5ws.environment import drift

    snapshot = names.find_id(repo, given["snapshot"], "snapshot") if given["snapshot"] else None
    request = fork.ForkRequest(
        checkpoint=checkpoint, snapshot=snapshot, overrides=given["overrides"], options=launch, restart=given["restart"]
    )
    run = fork.new_run(repo, request)
    assert run.parent is not None
    output.print_note(f"starting after step {run.parent.step} of run {run.parent.run}")
    for change in fork.changes(repo, run):
        output.print_note(f"  changed: {drift.title(change)}")
    return run


def refuse_useless(context: click.Context) -> None:
    """Raise UsageError for options that a resume, or a new run, would ignore."""
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    given |= {"command"} if script(context) else set()
    if "resume" in given and (useless := given - _FOR_RESUME - _ANY):
        raise UsageError(
            f"--resume cannot be combined with {_labels(context, useless)}: a resumed run keeps its original options"
        )
    if "resume" not in given and (useless := given & _FOR_RESUME):
        raise UsageError(f"{_labels(context, useless)} requires --resume")
    if "resume" not in given and "rebuild" in context.params["env"]:
        raise UsageError("--env rebuild requires --resume")
    if given >= {"at", "from_scratch"}:
        raise UsageError("--at cannot be combined with --from-scratch, which restores nothing")


def _labels(context: click.Context, given: Iterable[str]) -> str:
    """Return parameters as they are written on the command line."""
    labels = {
        parameter.name: max(parameter.opts, key=len) if isinstance(parameter, click.Option) else str(parameter.name)
        for parameter in context.command.params
    }
    return ", ".join(labels.get(name, name.upper()) for name in sorted(given))
