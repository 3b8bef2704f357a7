"""`m5ws run`."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from m5ws.cli import detached, environment, note, outputs, sweep
from m5ws.cli.parameters import launch_options, names, run_source, sweep_options
from m5ws.cli.parameters.script import ScriptCommand, script
from m5ws.cli.terminal import interrupt, log_lines, output
from m5ws.cli.terminal import progress as progress_bars
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import M5Error, UsageError
from m5ws.records.ledger import COMPLETE

if TYPE_CHECKING:
    from m5ws.records.run import Axis, Run
    from m5ws.repository.repository import Repository
    from m5ws.runs.run import AttemptPlan, RunOptions
    from m5ws.runs.supervise import AttemptResult, Ports
    from m5ws.workspace import Workspace

_EXIT_STATUS = re.compile(r"exit status \d+(?: \(rank (\d+)\))?")
"""The reason of a failure if a script ended with a status, and not by an error."""


class RunFailed(M5Error):
    """The script of a run, or its launch, failed."""

    exit_code = 1


class Superseded(M5Error):
    """A newer attempt of the run has begun elsewhere, and this one was stopped."""

    exit_code = 4


class RunInterrupted(M5Error):
    """A run was stopped before its end."""

    exit_code = 130


class RunUnsaved(M5Error):
    """A run did all its steps, but the store does not have all its results."""

    exit_code = 5


class _Arguments(run_source.RunArguments, launch_options.LaunchArguments, sweep_options.SweepArguments):
    """The values of the options that select the run and its launch."""


@click.command("run", cls=ScriptCommand)
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a config key; may be repeated.")
@launch_options.options
@run_source.options
@sweep_options.options
@environment.option
@click.option("--detach", is_flag=True, help="Start the run in the background, and print its id.")
@click.option("--dry-run", is_flag=True, help="Take a snapshot and print the launch; launch nothing.")
@click.option("--keep-work", is_flag=True, help="Keep output files in the run's work directory.")
@click.option("--no-progress", is_flag=True, help="Print neither steps nor the output of rank 0.")
@click.option("--planned", type=click.Path(path_type=Path), hidden=True)
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    env: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    keep_work: bool,
    no_progress: bool,
    as_json: bool,
    **given: Unpack[_Arguments],
) -> None:
    """Train from a snapshot, in isolation.

    Without SNAPSHOT, a snapshot of the workspace is taken first. Every process gets the snapshot's files in a fresh
    directory, and sees nothing of your checkout. The run's id is printed on stdout at once.

    COMMAND is a script and its arguments (default: `[run] command` in m5ws.toml). A script is one process, or with
    --nproc as many ranks of torchrun. COMMAND may also be a launcher with a script: `python`, `torchrun`, `deepspeed`,
    `accelerate launch` or `composer`. A launcher runs as typed, with a module of m5ws in the script's place. Any other
    program runs too, and is judged by its files. `--` may be left out before a word that is no id.

    --sweep starts a run for each combination of values, --parallel of them at a time. KEY is an argument of COMMAND, a
    key of the config (as in --set), or seed. VALUES are separated by commas, or a range: 0:4 is 0, 1, 2 and 3. A failed
    run does not stop the others. --resume SWEEP starts the runs that did not begin, and resumes the runs that
    did not finish. Runs that train at the same time get equal shares of the machine's GPUs, if each
    share has a GPU for each process.

    --from starts a new run (a fork) from a checkpoint of another run. RUN is its newest checkpoint, RUN@STEP the one
    after that step. The fork keeps its parent's snapshot and launch, except for SNAPSHOT and the options given. It
    continues with the parent's weights, optimizer state, generators and position in data and schedule. Changed
    settings take effect.

    On stderr, the steps of a script with m5ws.session are shown, also with --json. Without a session, the output of
    rank 0 is shown as it is written, with secrets masked. `m5ws logs` prints the
    output of all ranks.

    The environment is compared before the launch. A new run requires the versions that its snapshot declares. A
    resumed run also requires the environment of the attempt that it continues. --env sets the reaction to a
    difference.

    When a run has finished, output files that the store has are removed from its work directory. `m5ws outputs` writes
    them. Other files of the script stay, and all files of a failed run. --keep-work keeps the output files.

    Ctrl-C stops the run, and so does a signal of a scheduler (SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU). All
    processes of the script end with the run. Published checkpoints and results stay valid. --resume continues the run
    in any workspace that has the store. A script without a session gets its output files as the last attempt left
    them. With --at, it gets the files of an earlier moment. --from-scratch restores nothing.

    Exit status: 0 the run finished, 1 it failed, 4 another attempt took over, 5 all steps are done but the store lacks
    results, 130 interrupted. Of a sweep: 0 if all runs finished, else the status of the
    unfinished runs, or 1 if their statuses differ.

    \b
    Examples:
      m5ws run
      m5ws run train.py --epochs 3
      m5ws run -- torchrun --nproc-per-node 2 train.py --lr 1e-3
      m5ws run 1f3a9c --set optimizer.lr=1e-4 --nproc 2
      m5ws run --resume 7c1d
      m5ws run --from 7c1d@20000 --set lr=1e-4
      m5ws run --sweep lr=1e-4,3e-4 --parallel 2
    """
    from m5ws.library import actions

    run_source.refuse_useless(context)
    if given["why"] is not None:
        note.refuse_invalid(given["why"])
    axes = _axes(given["sweep"])
    workspace = names.workspace(context)
    repo = names.open_repository(workspace, create=True)
    sweep_id = _find_sweep(repo, given)
    if sweep_id is not None or axes:
        return _run_sweep(context, workspace, repo, given, sweep_id, axes)
    run = run_source.select(workspace, repo, given, _launch(script(context), given))
    resumes = given["resume"] is not None
    ports, plan = _plan(workspace, repo, run, env, resumes=resumes, from_scratch=given["from_scratch"], at=given["at"])
    if plan.attempt == 1 and given["planned"] is None:
        _warn_of_files(workspace, repo, run)
    if (why := given["why"]) is not None:
        plan = msgspec.structs.replace(plan, why=actions.write_note(workspace, run.id, why, kind="why"))
    if dry_run:
        return output.print_json(plan) if as_json else output.echo(_describe(plan))
    if detach:
        detached.start(workspace, repo, plan, env, keep_work=keep_work)
        return output.print_json({"run": run}) if as_json else output.echo(run.id)
    if keep_work:
        ports = msgspec.structs.replace(ports, keep_work=True)
    return _follow(ports, plan, progress=not no_progress, as_json=as_json)


def _axes(sweeps: tuple[str, ...]) -> "tuple[Axis, ...]":
    """Return the grid of `--sweep` options. Raises UsageError."""
    from m5ws.runs import sweep_grid

    return sweep_grid.parse(sweeps) if sweeps else ()


def _find_sweep(repo: "Repository", given: _Arguments) -> str | None:
    """Return the sweep that `--resume` names; None if it names a run. Raises NotFound, AmbiguousId, UsageError."""
    from m5ws.repository import ids

    if given["resume"] is None:
        return None
    kind, found_id = ids.resolve(repo, given["resume"], ("run", "sweep"))
    if kind == "sweep":
        return found_id
    if given["parallel"] is not None:
        raise UsageError(f"--parallel requires a sweep, and {found_id} is a run")
    return None


def _run_sweep(
    context: click.Context,
    workspace: "Workspace",
    repo: "Repository",
    given: _Arguments,
    sweep_id: str | None,
    axes: "tuple[Axis, ...]",
) -> None:
    """Start or resume a sweep. Raises SweepIncomplete, and before any start the errors that all runs would have."""
    from m5ws.repository import notes

    env, progress, why = context.params["env"], not context.params["no_progress"], given["why"]
    if "rebuild" in env or context.params["detach"]:
        raise UsageError("a sweep cannot be combined with --env rebuild or --detach")
    if sweep_id is not None:
        plan = sweep.plan_resume(repo, sweep_id)
        why = notes.why(notes.load(repo, plan.base.id))
    else:
        launch = _launch(script(context), given)
        plan = sweep.plan_new(repo, run_source.select(workspace, repo, given, launch, is_swept=True), axes)
        _plan(workspace, repo, plan.base, env, resumes=False)
        _warn_of_files(workspace, repo, plan.base)
    as_json = context.params["as_json"]
    if context.params["dry_run"]:
        return output.print_json(plan) if as_json else output.echo(sweep.describe(plan))
    arguments = [*(f"--env={value}" for value in env), *["--no-progress"] * (not progress)]
    arguments += ["--keep-work"] * context.params["keep_work"]
    return sweep.execute(
        workspace,
        repo,
        plan,
        arguments,
        parallel=given["parallel"] or 1,
        why=why,
        take_over=given["take_over"],
        progress=progress,
        as_json=as_json,
    )


def _warn_of_files(here: "Workspace", repo: "Repository", run: "Run") -> None:
    """Print the files that the command names and that the run will not find."""
    from m5ws.repository import snapshots
    from m5ws.runs import named_files

    snapshot = snapshots.load(repo, run.snapshot)
    for line in named_files.warnings(repo, snapshot, run.spec.command, here.root, run.spec.outputs):
        output.warn(f"warning: {line}")


def _launch(script_argv: tuple[str, ...], given: launch_options.LaunchArguments) -> "RunOptions":
    from m5ws.runs import run as operation

    return operation.RunOptions(
        command=script_argv,
        trainer=given["trainer"],
        nproc=given["nproc"],
        seed=given["seed"],
        checkpoint_every=given["checkpoint_every"],
        checkpoint_minutes=given["checkpoint_minutes"],
        fingerprint_every=given["fingerprint_every"],
        observe=given["observe"],
        name=given["name"],
    )


def _plan(
    workspace: "Workspace",
    repo: "Repository",
    run: "Run",
    env: tuple[str, ...],
    *,
    resumes: bool,
    from_scratch: bool = False,
    at: str | None = None,
) -> "tuple[Ports, AttemptPlan]":
    """Return the next attempt of a run and its ports, after a check of the environment.

    `at` names the output files to restore. Raises UsageError if a resume has nothing to restore, EnvironmentDiffers.
    """
    from m5ws.runs import kept_files
    from m5ws.runs import run as operation

    ports = workspace.ports(repo)
    if resumes:
        ports = environment.ports(workspace, ports, env, run.id, None)
    if resumes and not run.spec.outputs and workspace.settings.run.outputs:
        kept_files.store(repo, run, workspace.home, workspace.settings.run.outputs)
    plan = operation.plan(
        repo,
        run,
        workspace.home,
        workspace.root,
        ports.environment,
        ports.tracker,
        workspace.settings.checkpoint,
        python=ports.python,
        from_scratch=from_scratch,
    )
    if at is not None:
        plan = _with_copy(repo, plan, at)
    if resumes and plan.from_scratch and not from_scratch:
        raise _nothing_to_restore(workspace, run, plan.attempt - 1)
    with progress_bars.Bar() as bar:
        bar("comparing the environment", 0, 0)
        environment.check(ports, plan, env)
    return ports, plan


def _with_copy(repo: "Repository", plan: "AttemptPlan", at: str) -> "AttemptPlan":
    """Return the plan with the output files `at`. Raises UsageError for a run with checkpoints, NotFound."""
    if plan.resume is not None:
        raise UsageError(
            f"run {plan.run.id} resumes from checkpoint {plan.resume}, which restores no output files",
            hint="Leave out --at, or start a new run from an earlier checkpoint with `m5ws run --from RUN@STEP`.",
        )
    return msgspec.structs.replace(plan, outputs=outputs.find_copy(repo, plan.run.id, at))


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
    """Execute a plan and report the result. Raises RunFailed, RunInterrupted."""
    from m5ws.runs import supervise

    if not as_json:
        output.echo(plan.run.id)
    logs = plan.directory / "logs"
    with interrupt.on_signals(), RunProgress(enabled=progress, log=logs / "rank-0.log") as shown:
        result = supervise.execute(ports, plan, shown.watch, shown.prepare, shown.poll)
    if as_json:
        output.print_json({"run": plan.run, "result": result})
    if any((work := plan.directory / "work").glob("*")):
        output.print_note(f"files of the script are kept in {work}")
    _judge(result, logs, _describe_restored(ports.repo, plan, result))
    _print_provable(ports, plan.run)


def _print_provable(ports: "Ports", run: "Run") -> None:
    """Print the command that verifies a finished run, or the reason why nothing can be verified."""
    from m5ws.reproduce import refusals
    from m5ws.reproduce.outputs import results

    if not results.has_none(ports.repo, ports.tracker, run.id):
        output.print_note(f"run {run.id} finished; verify it with `m5ws reproduce {run.id}`")
        return
    output.warn(f"run {run.id} finished; `m5ws reproduce` cannot verify it: {refusals.NOTHING}")
    hint = "Set outputs in [run] of m5ws.toml to the files and folders that the script writes."
    if run.spec.outputs:
        hint = f"The script wrote no file to {', '.join(run.spec.outputs)}, of [run] outputs in m5ws.toml."
    output.warn(f"hint: {hint}")


def _describe(plan: "AttemptPlan") -> str:
    request = plan.request
    fields = {
        "run": plan.run.id,
        "attempt": str(plan.attempt),
        "snapshot": plan.run.snapshot,
        "starts from": plan.context.parent.name if plan.context.parent else None,
        "restores": f"output files {plan.outputs.name} of attempt {plan.outputs.attempt}" if plan.outputs else None,
        "resumes from": None if plan.context.parent else plan.resume,
        "directory": request.cwd,
        "first": shlex.join(request.prepare) or None,
        "command": shlex.join(request.argv),
    }
    variables = [f"  {name}={shlex.quote(value)}" for name, value in sorted(request.environment.items())]
    return "\n".join([output.fields(fields), "with", *variables])


def _describe_restored(repo: "Repository", plan: "AttemptPlan", result: "AttemptResult") -> str:
    """Return advice on the output files that an attempt had restored, if it failed before its first step."""
    from m5ws.runs import state

    if plan.outputs is None or result.outcome != "failed" or not result.delivered:
        return ""
    run = plan.run.id
    if state.attempt_of(repo, run, plan.attempt).last_step:
        return ""
    return (
        f"The attempt had restored the output files {plan.outputs.name} and recorded no step. "
        f"`m5ws outputs {run} --copies` lists earlier copies, and `m5ws run --resume {run} --at TIME` restores one; "
        "`--from-scratch` restores none. "
    )


def _judge(result: "AttemptResult", logs: Path, restored: str = "") -> None:
    """Report the result of a run. Raises RunFailed, RunInterrupted, RunUnsaved, Superseded.

    `logs` is the folder of its ranks' logs, `restored` advice on the output files that it had.
    """
    if not result.delivered and result.outcome not in COMPLETE:
        output.warn(
            "note: the store does not have the complete ledger yet; the next m5ws command here uploads the rest"
        )
    if result.untracked:
        output.warn(f"note: the ledger is complete, MLflow is not: {result.untracked}")
    ended = f"run {result.run} {result.outcome}" + (f": {result.message}" if result.message else "")
    if result.superseded:
        raise Superseded(
            f"attempt {result.attempt} of {ended}", hint=f"`m5ws show {result.run}` shows the newer attempt."
        )
    if result.outcome == "interrupted":
        raise RunInterrupted(ended, hint=f"`m5ws run --resume {result.run}` continues the run.")
    if result.outcome == "unsaved":
        hint = (
            "The next m5ws command on this machine uploads the results that are kept here, if the store answers. "
            f"If nothing was kept, `m5ws run --resume {result.run}` continues from the newest checkpoint."
        )
        raise RunUnsaved(ended, hint=hint)
    if result.outcome != "finished":
        hint = f"{restored}`m5ws logs {result.run}` prints the output of its ranks."
        # Such as Hydra, which prints the exception of a script and ends with a status.
        ended_by = _EXIT_STATUS.match(result.message or "")
        rank = (ended_by[1] or "0") if ended_by else None
        if rank is not None and (error := log_lines.find_error(logs / f"rank-{rank}.log")) is not None:
            hint = f"The last error in the output of rank {rank} is {error!r}. {hint}"
        raise RunFailed(ended, hint=hint)
    if not result.delivered:
        raise RunUnsaved(
            f"{ended}, but the store does not have the complete ledger",
            hint="The next m5ws command on this machine uploads the rest.",
        )
