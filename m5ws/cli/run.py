"""`m5ws run`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from m5ws.cli import detached, environment, outputs, sweep
from m5ws.cli.parameters import launch_options, names, run_source
from m5ws.cli.parameters.script import ScriptCommand, script
from m5ws.cli.terminal import interrupt, output, run_end
from m5ws.cli.terminal import progress as progress_bars
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.ports import Ports
    from m5ws.attempts.planning import RunOptions
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace


class _Arguments(run_source.RunArguments, launch_options.LaunchArguments):
    """The values of the options that select the run and its launch."""


@click.command("run", cls=ScriptCommand)
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a config key; may be repeated.")
@launch_options.options
@run_source.options
@environment.option
@click.option("--detach", is_flag=True, help="Start the run in the background, and print its id.")
@click.option("--dry-run", is_flag=True, help="Take a snapshot and print the launch; launch nothing.")
@click.option("--no-progress", is_flag=True, help="Print neither steps nor the output of rank 0.")
@click.option("--planned", type=click.Path(path_type=Path), hidden=True)
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    env: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    no_progress: bool,
    as_json: bool,
    **given: Unpack[_Arguments],
) -> None:
    """Train from a snapshot, in isolation.

    Without SNAPSHOT, a snapshot of the workspace is taken first. Every process gets the snapshot's files in a fresh
    directory, and sees nothing of your checkout. The run's id is printed on stdout at once.

    COMMAND is a script and its arguments (default: `[run] command` in m5ws.toml), a launcher with a script, such as
    `torchrun`, or any other program. It runs as typed. `--` may be left out before a word that is no id.

    --sweep starts a run for each combination of values. KEY is an argument of COMMAND, a key of the config, or seed.
    VALUES are separated by commas, or a range: 0:4 is 0, 1, 2 and 3. --from starts a new run (a fork) from a checkpoint
    of another run: RUN is its newest, RUN@STEP the one after that step. The fork keeps its parent's snapshot and
    launch, except for SNAPSHOT and the options given.

    --resume continues a run or a sweep in any workspace that has the store. Ctrl-C stops a run, and so does a signal of
    a scheduler. Published checkpoints and results stay valid.

    Exit status: 0 the run finished, 1 it failed, 4 another attempt took over, 5 all steps are done but the store lacks
    results, 130 interrupted. Of a sweep: 0 if all runs finished, else the status of the
    unfinished runs, or 1 if their statuses differ.

    \b
    Examples:
      m5ws run train.py --epochs 3
      m5ws run -- torchrun --nproc-per-node 2 train.py --lr 1e-3
      m5ws run 1f3a9c --set optimizer.lr=1e-4 --nproc 2
      m5ws run --resume 7c1d
      m5ws run --from 7c1d@20000 --set lr=1e-4
      m5ws run --sweep lr=1e-4,3e-4 --parallel 2
    """
    run_source.refuse_useless(context)
    workspace = names.workspace(context)
    repo = workspace.open_repository(create=True)
    sweep_id = _find_sweep(repo, given)
    if sweep_id is not None or given["sweep"]:
        return _run_sweep(context, workspace, repo, given, sweep_id)
    ports, plan = _plan_run(context, workspace, repo, given)
    if dry_run:
        return output.print_json(plan) if as_json else output.echo(_describe(plan))
    if detach:
        detached.start(workspace, repo, plan, env)
        return output.print_json({"run": plan.run}) if as_json else output.echo(plan.run.id)
    return _follow(ports, plan, progress=not no_progress, as_json=as_json)


def _plan_run(
    context: click.Context, workspace: "Workspace", repo: "Repository", given: _Arguments
) -> "tuple[Ports, AttemptPlan]":
    """Return the next attempt of the selected run, and its ports. Raises as `_plan` and `run_source.select` do."""
    from m5ws.library import actions
    from m5ws.repository.references import notes

    if (why := given["why"]) is not None:
        notes.refuse_invalid(why)
    run = run_source.select(workspace, repo, given, _launch(context, given))
    ports, plan = _plan(workspace, repo, run, context.params["env"], given)
    if why is not None:
        plan = msgspec.structs.replace(plan, why=actions.write_note(workspace, run.id, why, kind="why"))
    return ports, plan


def _find_sweep(repo: "Repository", given: _Arguments) -> str | None:
    """Return the sweep that `--resume` names; None if it names a run. Raises NotFound, AmbiguousId."""
    from m5ws.repository.references import ids

    if given["resume"] is None:
        return None
    kind, found_id = ids.resolve(repo, given["resume"], ("run", "sweep"))
    return found_id if kind == "sweep" else None


def _run_sweep(
    context: click.Context, workspace: "Workspace", repo: "Repository", given: _Arguments, sweep_id: str | None
) -> None:
    """Start or resume a sweep. Raises SweepIncomplete, and before any start the errors that all runs would have."""
    from m5ws.attempts import sweep_grid
    from m5ws.repository.references import notes

    env, progress, why = context.params["env"], not context.params["no_progress"], given["why"]
    if "rebuild" in env or context.params["detach"]:
        raise UsageError("a sweep cannot be combined with --env rebuild or --detach")
    if sweep_id is not None:
        plan = sweep.plan_resume(repo, sweep_id)
        why = notes.why(notes.load(repo, plan.base.id))
    else:
        if why is not None:
            notes.refuse_invalid(why)
        axes = sweep_grid.parse(given["sweep"])
        plan = sweep.plan_new(repo, run_source.select(workspace, repo, given, _launch(context, given)), axes)
        _plan(workspace, repo, plan.base, env, given)
    as_json = context.params["as_json"]
    if context.params["dry_run"]:
        return output.print_json(plan) if as_json else output.echo(sweep.describe(plan))
    options = sweep.SweepOptions(
        all=(*(f"--env={value}" for value in env), *["--no-progress"] * (not progress)),
        new=(f"--why={why}",) if why is not None else (),
        resumed=("--take-over",) * given["take_over"],
    )
    return sweep.execute(workspace, repo, plan, options, parallel=given["parallel"], progress=progress, as_json=as_json)


def _launch(context: click.Context, given: _Arguments) -> "RunOptions":
    from m5ws.attempts.planning import RunOptions

    return msgspec.convert({**given, "command": script(context)}, RunOptions)


def _plan(
    workspace: "Workspace", repo: "Repository", run: "Run", env: tuple[str, ...], given: _Arguments
) -> "tuple[Ports, AttemptPlan]":
    """Return the next attempt of a run and its ports, after a check of the environment.

    Raises UsageError if a resume has nothing to restore, EnvironmentDiffers.
    """
    from m5ws.attempts import kept_files
    from m5ws.attempts import planning as operation

    ports, written = workspace.ports(repo), workspace.settings.run.outputs
    if given["resume"] is not None:
        ports = environment.ports(workspace, ports, env, run.id, None)
        if written and not run.spec.outputs:
            kept_files.store(repo, run, workspace.home, written)
    plan = operation.plan(
        repo,
        run,
        workspace.home,
        workspace.root,
        ports.environment,
        ports.tracker,
        workspace.settings.checkpoint,
        python=ports.python,
        from_scratch=given["from_scratch"],
    )
    if given["at"] is not None:
        plan = msgspec.structs.replace(plan, outputs=outputs.find_copy(repo, plan.run.id, given["at"]))
    if given["resume"] is not None and plan.from_scratch and not given["from_scratch"]:
        raise _nothing_to_restore(workspace, run, plan.attempt - 1)
    with progress_bars.Bar() as bar:
        bar("comparing the environment", 0, 0)
        environment.check(ports, plan, env)
    return ports, plan


def _nothing_to_restore(workspace: "Workspace", run: "Run", attempt: int) -> UsageError:
    """Return the error of a resume without a checkpoint and without output files."""
    hint = "`--from-scratch` restarts at the first step."
    work = workspace.attempt_dir(run.id, attempt) / "work"
    if not workspace.settings.run.outputs and work.is_dir():
        hint = (
            f"The files of attempt {attempt} are in {work}. Set outputs in [run] of m5ws.toml to the files that a "
            f"resume needs, and repeat the command. {hint}"
        )
    return UsageError(f"run {run.id} has neither a checkpoint nor output files to restore", hint=hint)


def _follow(ports: "Ports", plan: "AttemptPlan", *, progress: bool, as_json: bool) -> None:
    """Execute a plan and report the result. Raises as `run_end.report` does."""
    from m5ws.attempts import leader

    if not as_json:
        output.echo(plan.run.id)
    log = plan.directory / "logs" / "rank-0.log"
    with interrupt.on_signals(), RunProgress(enabled=progress, log=log) as shown:
        result = leader.execute(ports, plan, shown.watch, shown.prepare, shown.poll)
    if as_json:
        output.print_json({"run": plan.run, "result": result})
    if any((work := plan.directory / "work").glob("*")):
        output.print_note(f"files of the script are kept in {work}")
    run_end.report(ports, plan, result)


def _describe(plan: "AttemptPlan") -> str:
    request = plan.request
    fields = {
        "run": plan.run.id,
        "attempt": str(plan.attempt),
        "snapshot": plan.run.snapshot,
        "starts from": plan.context.parent.name if plan.context.parent else None,
        "restores": f"output files {plan.outputs.name} of attempt {plan.outputs.attempt}" if plan.outputs else None,
        "resumes from": None if plan.context.parent else plan.resume,
        "first": shlex.join(request.prepare) or None,
        "command": shlex.join(request.argv),
    }
    variables = [f"  {name}={shlex.quote(value)}" for name, value in sorted(request.environment.items())]
    return "\n".join([output.fields(fields), "with", *variables])
