"""`m5ws run`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import click
from click.core import ParameterSource

from m5ws.cli import detached, environment
from m5ws.cli.parameters import launch_options, names
from m5ws.cli.parameters.script import ScriptCommand, script
from m5ws.cli.snapshot import start
from m5ws.cli.terminal import interrupt, output
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import M5Error, UsageError
from m5ws.records.ledger import COMPLETE

if TYPE_CHECKING:
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.runs.run import Options, Plan
    from m5ws.runs.supervise import Ports, Result
    from m5ws.workspace import Workspace


class RunFailed(M5Error):
    """The script of a run, or its launch, ended badly."""

    exit_code = 1


class Superseded(M5Error):
    """A later attempt of the run has begun elsewhere, and this one was stopped."""

    exit_code = 4


class RunInterrupted(M5Error):
    """A run was stopped before its end."""

    exit_code = 130


class RunUnsaved(M5Error):
    """A run did all its steps, and not all that it ended with is in the store."""

    exit_code = 5


@click.command("run", cls=ScriptCommand)
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a config key; may be repeated.")
@launch_options.options
@click.option("-m", "--message", type=names.Text(), metavar="TEXT", help="Said of the snapshot, if one is made here.")
@click.option("--resume", type=names.Id(("run",)), metavar="RUN", help="Go on with a run from its last checkpoint.")
@click.option("--from-scratch", is_flag=True, help="With --resume: start from the first step if nothing was saved.")
@click.option("--take-over", is_flag=True, help="With --resume: stop an attempt that may be alive elsewhere.")
@click.option(
    "--from",
    "from_",
    type=names.CheckpointName(),
    metavar="RUN[@STEP]",
    help="Start a new run from a checkpoint, with what is changed here.",
)
@click.option(
    "--restart",
    multiple=True,
    type=click.Choice(["data", "schedule", "generators"]),
    help="With --from: begin this anew; may be repeated.",
)
@environment.option
@click.option("--detach", is_flag=True, help="Start it, print its id, and leave it to itself.")
@click.option("--dry-run", is_flag=True, help="Launch nothing; print what would be. Takes a snapshot.")
@click.option("--no-progress", is_flag=True, help="Print no steps.")
@click.option("--planned", type=click.Path(path_type=Path), hidden=True)
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    snapshot: str | None,
    overrides: tuple[str, ...],
    message: str | None,
    resume: str | None,
    take_over: bool,
    from_scratch: bool,
    from_: str | None,
    restart: tuple[Literal["data", "schedule", "generators"], ...],
    env: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    no_progress: bool,
    planned: Path | None,
    as_json: bool,
    **launch: Unpack[launch_options.Given],
) -> None:
    """Train from a snapshot, in isolation.

    Without SNAPSHOT, the workspace is snapshotted first. Every process sees the snapshot's files in a fresh
    directory and nothing of the checkout. COMMAND is a script and its arguments; m5ws.toml may name one. The
    run's id is printed on stdout at once.

    With --from, a new run starts from a checkpoint of another one: RUN alone means its newest, RUN@STEP the one
    after a step. It has its parent's snapshot and launch, but for SNAPSHOT and the options given; weights, optimizer
    state, generators and the position in data and schedule go on, and changed settings take effect.

    The environment is compared before the launch. A new run needs the versions that its snapshot declares; a resumed
    run also needs the environment of the attempt that it continues. --env sets the reaction to a difference.

    Ctrl-C stops the run; what was published until then stays valid, and `--resume` goes on from it, in any
    workspace that has the store. Exit status: 0 the run finished, 1 it failed, 4 another attempt took it over,
    5 it did all its steps and the store lacks results, 130 it was interrupted.

    \b
    Examples:
      m5ws run
      m5ws run 1f3a9c --set optimizer.lr=1e-4 --nproc 2 -- train.py --steps 200
      m5ws run --resume 7c1d
      m5ws run --from 7c1d@20000 --set optimizer.lr=1e-4
    """
    from m5ws.runs import recovery
    from m5ws.runs import run as operation

    _refuse_useless(context)
    here = names.workspace(context)
    repo = names.settled(here, create=True)
    options = operation.Options(command=script(context), **launch)
    if planned is not None:
        run = detached.planned(planned)
    elif resume is not None:
        run = operation.resumed(repo, names.found(repo, resume, "run"))
        if not take_over:
            recovery.refuse_elsewhere(repo, run.id, here.home)
    elif from_ is not None:
        run = _fork(repo, from_, snapshot, overrides, options, restart)
    else:
        spec = operation.spec(here.settings.run, options)
        run = operation.new_run(start(here, repo, snapshot, overrides, message), spec, name=options.name)
    ports, plan = _plan(here, repo, run, env, resumes=resume is not None, from_scratch=from_scratch)
    if dry_run:
        return output.print_json(plan) if as_json else output.echo(_describe(plan))
    if detach:
        detached.start(here, repo, plan, env)
        return output.print_json({"run": run}) if as_json else output.echo(run.id)
    return _follow(ports, plan, progress=not no_progress, as_json=as_json)


def _plan(
    here: "Workspace", repo: "Repository", run: "Run", env: tuple[str, ...], *, resumes: bool, from_scratch: bool
) -> "tuple[Ports, Plan]":
    """Return the next attempt of a run and its ports, after a check of the environment.

    Raises UsageError if a resume has nothing to restore, EnvironmentDiffers.
    """
    from m5ws.runs import run as operation

    ports = here.ports(repo)
    if resumes:
        ports = environment.ports(here, ports, env, run.id, None)
    plan = operation.plan(
        repo, run, here.home, here.root, ports.environment, ports.tracker, here.settings.checkpoint, python=ports.python
    )
    if resumes and plan.from_scratch and not from_scratch:
        raise UsageError(
            f"run {run.id} has neither a checkpoint nor output files to restore",
            hint="`--from-scratch` starts again from the first step.",
        )
    environment.check(ports, plan, env)
    return ports, plan


def _fork(
    repo: "Repository",
    checkpoint: str,
    snapshot: str | None,
    overrides: tuple[str, ...],
    options: "Options",
    restart: tuple[Literal["data", "schedule", "generators"], ...],
) -> "Run":
    """Return a new run that starts from a checkpoint, and say what differs from its parent."""
    from m5ws.runs import fork

    named = names.found(repo, snapshot, "snapshot") if snapshot else None
    run = fork.new_run(
        repo, fork.Request(checkpoint=checkpoint, snapshot=named, overrides=overrides, options=options, restart=restart)
    )
    _say_changes(repo, run)
    return run


def _follow(ports: "Ports", plan: "Plan", *, progress: bool, as_json: bool) -> None:
    """Execute a plan to its end and say how it ended. Raises RunFailed, RunInterrupted."""
    from m5ws.runs import supervise

    if not as_json:
        output.echo(plan.run.id)
    with interrupt.on_signals(), RunProgress(enabled=progress) as shown:
        result = supervise.execute(ports, plan, shown.watch, shown.prepare)
    if as_json:
        output.print_json({"run": plan.run, "result": result})
    _judge(result)
    _say_provable(ports, result.run)


def _say_provable(ports: "Ports", run: str) -> None:
    """Print how a finished run is verified, or that nothing of it can be."""
    from m5ws.reproduce import refusals
    from m5ws.reproduce.outputs import results

    if not results.are_missing(ports.repo, ports.tracker, run):
        output.note(f"run {run} finished; `m5ws reproduce {run}` proves it")
        return
    output.warn(f"run {run} finished; `m5ws reproduce` cannot verify it: {refusals.NOTHING}")
    output.warn("hint: `[run] outputs` in m5ws.toml names the folders that a script writes to.")


def _say_changes(repo: "Repository", run: "Run") -> None:
    """Say where a fork starts and what it is given otherwise than its parent."""
    from m5ws.environment import drift
    from m5ws.runs import fork

    if run.parent is None:
        return
    output.note(f"starting after step {run.parent.step} of run {run.parent.run}")
    for change in fork.changes(repo, run):
        output.note(f"  changed: {drift.title(change)}")


_WITH_RESUME = {"resume", "take_over", "from_scratch", "env", "detach", "dry_run", "no_progress", "as_json"}


def _refuse_useless(context: click.Context) -> None:
    """Refuse what would be ignored: a run that is resumed goes on as it was started."""
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if script(context):
        given.add("command")
    if "resume" in given and (useless := given - _WITH_RESUME):
        names_of = ", ".join(sorted(name.strip("_").replace("_", " ") for name in useless))
        raise UsageError(f"a resumed run goes on as it was started: {names_of} cannot be given")
    if "rebuild" in context.params["env"] and "resume" not in given:
        raise UsageError("--env rebuild needs --resume")
    if "take_over" in given and "resume" not in given:
        raise UsageError("--take-over needs --resume")
    if "from_scratch" in given and "resume" not in given:
        raise UsageError("--from-scratch needs --resume")
    if "restart" in given and "from_" not in given:
        raise UsageError("only a run that starts --from a checkpoint has anything to restart")
    if {"from_", "message"} <= given:
        raise UsageError("a message is said of a new snapshot, and a fork has its parent's, or SNAPSHOT")
    if {"snapshot", "message"} <= given:
        raise UsageError("a message is said of a new snapshot, and SNAPSHOT names one that is there")


def _describe(plan: "Plan") -> str:
    request = plan.request
    told = {
        "run": plan.run.id,
        "attempt": str(plan.attempt),
        "snapshot": plan.run.snapshot,
        "starts from": plan.context.parent.name if plan.context.parent else None,
        "given": f"output files of attempt {plan.outputs.attempt}" if plan.outputs else None,
        "resumes from": None if plan.context.parent else plan.resume,
        "directory": request.cwd,
        "first": shlex.join(request.prepare) or None,
        "command": shlex.join(request.argv),
    }
    variables = [f"  {name}={shlex.quote(value)}" for name, value in sorted(request.environment.items())]
    return "\n".join([output.fields(told), "with", *variables])


def _judge(result: "Result") -> None:
    """Say how the run ended. Raises RunFailed, RunInterrupted."""
    if not result.delivered and result.outcome not in COMPLETE:
        output.warn("note: the store does not have the whole ledger yet; the next command here delivers it")
    if result.untracked:
        output.warn(f"note: the ledger has all of it, MLflow not yet: {result.untracked}")
    ended = f"run {result.run} {result.outcome}" + (f": {result.message}" if result.message else "")
    if result.superseded:
        raise Superseded(f"attempt {result.attempt} of {ended}", hint=f"`m5ws show {result.run}` says how it goes on.")
    if result.outcome == "interrupted":
        raise RunInterrupted(ended, hint=f"`m5ws run --resume {result.run}` goes on with it.")
    if result.outcome == "unsaved":
        hint = (
            "What this machine kept is stored by the next m5ws command here, when the store answers. "
            f"If nothing was kept, `m5ws run --resume {result.run}` goes on from the newest checkpoint."
        )
        raise RunUnsaved(ended, hint=hint)
    if result.outcome != "finished":
        raise RunFailed(ended, hint=f"`m5ws logs {result.run}` shows what its ranks wrote.")
    if not result.delivered:
        raise RunUnsaved(
            f"{ended}, and the store does not have its whole ledger", hint="The next m5ws command here delivers it."
        )
