"""Options and arguments that describe a new run, and the run itself: from a snapshot, or from a checkpoint."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from m5ws.cli import environment
from m5ws.cli.parameters import cluster_options, launch_options, names
from m5ws.cli.parameters.grouped import Command, grouped
from m5ws.cli.parameters.script import script
from m5ws.cli.snapshot import take
from m5ws.cli.terminal import output
from m5ws.config.commands import launchers

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.ports import Ports
    from m5ws.attempts.planning import RunOptions
    from m5ws.records.nodes import Planned
    from m5ws.records.run import LaunchSpec, Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

Restart = tuple[Literal["data", "schedule", "generators"], ...]

change = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change an argument of the command, or a config key; may be repeated.",
)
message = click.option("-m", "--message", type=names.Text(), metavar="TEXT", help="Message for the new snapshot.")
restart = click.option(
    "--restart",
    multiple=True,
    type=click.Choice(["data", "schedule", "generators"]),
    help="Reset this part of the checkpoint's state; may be repeated.",
)
without = click.option(
    "--without",
    multiple=True,
    type=names.Text(),
    metavar="PATH",
    help="Leave out the samples of this file, folder or dataset; may be repeated.",
)
snapshot = click.option("--snapshot", type=names.Id(("snapshot",)), metavar="ID", help="Use this snapshot.")
options = grouped(
    change,
    launch_options.options,
    click.option("--why", type=names.Text(), metavar="TEXT", help="Note with the expectation of the new run."),
)


def of_job(steps: int, least: int, text: str = "Number of steps.") -> Callable[[Command], Command]:
    """Return the options of a command that trains the first steps of a job."""
    return grouped(
        change,
        click.option(
            "--nproc", type=click.IntRange(min=1), metavar="N", help="Number of processes (default: from m5ws.toml)."
        ),
        click.option("--steps", type=click.IntRange(least), default=steps, show_default=True, metavar="N", help=text),
    )


class NewRunArguments(launch_options.LaunchArguments, cluster_options.ClusterArguments):
    """The values of `options`, of the snapshot, and of the options of a start, here or on a cluster."""

    snapshot: str | None
    overrides: tuple[str, ...]
    why: str | None


class ForkArguments(NewRunArguments):
    """The values of the options of a run that may start from a checkpoint."""

    restart: Restart


def from_snapshot(
    context: click.Context, workspace: "Workspace", repo: "Repository", given: NewRunArguments, message: str | None
) -> "Run":
    """Return a new run of the given or a new snapshot. Raises UsageError, NotFound and the errors of a snapshot."""
    from m5ws.attempts import planning

    launch = _launch(context, given)
    spec = planning.spec(workspace.settings.run, with_import_path(workspace, launch))
    pinned, spec = pin(workspace, repo, given["snapshot"], spec, given["overrides"], message)
    return planning.new_run(pinned, spec, name=launch.name)


def pin(
    workspace: "Workspace",
    repo: "Repository",
    named: str | None,
    spec: "LaunchSpec",
    overrides: tuple[str, ...],
    message: str | None = None,
) -> "tuple[str, LaunchSpec]":
    """Return the named snapshot or a new snapshot, and a launch, with changes. Raises as `overrides.change`."""
    from m5ws.snapshot.config import overrides as operation

    snapshot_id = names.find_id(repo, named, "snapshot") if named else take(workspace, repo, message, observe=False).id
    return operation.change(repo, snapshot_id, spec, overrides)


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


def from_checkpoint(context: click.Context, repo: "Repository", checkpoint: str, given: ForkArguments) -> "Run":
    """Return a new run that starts from a checkpoint, and print its differences from its parent."""
    from m5ws.attempts import fork
    from m5ws.outputs import kept_work
    from m5ws.wording.changes import title

    request = fork.ForkRequest(
        checkpoint=checkpoint,
        snapshot=names.find_id(repo, given["snapshot"], "snapshot") if given["snapshot"] else None,
        overrides=given["overrides"],
        options=_launch(context, given),
        restart=given["restart"],
    )
    workspace = names.workspace(context)
    run = fork.new_run(repo, request, partial(kept_work.take_checkpoint, repo, workspace.home, workspace.kept))
    assert run.parent is not None
    output.print_note(f"starting after step {run.parent.step} of run {run.parent.run}")
    for difference in fork.changes(repo, run):
        output.print_note(f"  changed: {title(difference)}")
    return run


def plan(
    workspace: "Workspace",
    repo: "Repository",
    run: "Run",
    env: tuple[str, ...],
    why: str | None = None,
    *,
    from_scratch: bool = False,
    led: "Planned | None" = None,
) -> "tuple[Ports, AttemptPlan]":
    """Return the next attempt of a run and its ports, in a rebuilt environment with `--env rebuild`.

    `led` is as of `planning.plan`. Raises M5Error.
    """
    from m5ws.attempts import planning
    from m5ws.library import actions

    ports = environment.ports(workspace, workspace.ports(repo), env, run.id, None)
    planned = planning.plan(
        repo,
        run,
        workspace.home,
        workspace.root,
        ports.environment,
        ports.tracker,
        workspace.settings.checkpoint,
        python=ports.python,
        from_scratch=from_scratch,
        place=ports.place,
        led=led,
    )
    if why is not None:
        planned = msgspec.structs.replace(planned, why=actions.write_note(workspace, run.id, why, kind="why"))
    return ports, planned


def refuse_invalid(why: str | None) -> None:
    """Raise UsageError for an expectation that cannot be stored."""
    from m5ws.repository.references import notes

    if why is not None:
        notes.refuse_invalid(why)


def _launch(context: click.Context, given: NewRunArguments) -> "RunOptions":
    from m5ws.attempts.planning import RunOptions

    return msgspec.convert({**given, "nodes": given["nodes"] or 1, "command": script(context)}, RunOptions)
