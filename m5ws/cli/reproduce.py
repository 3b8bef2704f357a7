"""`m5ws reproduce`."""

import shlex
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from m5ws.cli import environment
from m5ws.cli.parameters import cluster_options, names, new_run, segments
from m5ws.cli.terminal import interrupt, output
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import UsageError
from m5ws.records.verdict import Change

if TYPE_CHECKING:
    from m5ws.agent.ports import Ports
    from m5ws.reproduce.reproduce import ReplayRequest
    from m5ws.workspace import Workspace


class _Arguments(segments.SegmentArguments):
    """The values of the options that select the replay."""

    snapshot: str | None
    overrides: tuple[str, ...]
    seed: int | None
    nproc: int | None
    no_recheck: bool
    explain: bool
    strict: bool


@click.command("reproduce", context_settings={"allow_extra_args": True})
@click.argument("run", type=names.Id(("run",)))
@environment.option
@click.option("--snapshot", type=names.Id(("snapshot",)), metavar="ID", help="Use the inputs of another snapshot.")
@new_run.change
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Use another seed.")
@click.option("--nproc", type=click.IntRange(min=1), metavar="N", help="Use another number of processes.")
@segments.options
@segments.parallel
@click.option("--no-recheck", is_flag=True, help="Do not repeat a replay that diverged.")
@click.option("--explain", is_flag=True, help="Replay the steps around a divergence, and find its cause.")
@click.option("--strict", is_flag=True, help="Judge each output file by its bytes.")
@cluster_options.command_on
@cluster_options.nodes
@click.option("--no-progress", is_flag=True, help="Do not print steps.")
@output.json_command
def command(
    context: click.Context,
    run: str,
    env: tuple[str, ...],
    parallel: int,
    on: str | None,
    nodes: int | None,
    no_progress: bool,
    as_json: bool,
    **given: Unpack[_Arguments],
) -> None:
    """Repeat a run, and prove that it is the same bit for bit.

    RUN is a run's id, a unique prefix of it, or the run's name. The differences between the original and the present
    environment are listed, and the run is launched again from its snapshot. Losses, batches, state and checkpoints are
    compared as they are computed, up to the first divergence: its step, rank, quantity and tensor are printed. With
    options that change an input, the verdict shows the effect of the change.

    If a replay without changes diverges, it is repeated up to that step. If the two replays differ from each other,
    the run is nondeterministic. If they agree, the original is suspect.

    Output files are judged by their tensors, and by the results that `[run] results` in m5ws.toml names. If a script
    has neither, and no steps, all files and metrics are judged. With --strict all files are, by their bytes.

    A segment is the part of a run between two checkpoints, and is replayed from the first checkpoint. So a part of a
    run, or many parts in parallel, can be verified. All segments together verify the run.

    --on runs the command in a job of a cluster, whose --nodes share the processes of each replay. All segments are
    then shared by as many jobs as --parallel names, and the last job joins the verdicts.

    --env rebuild replays the run in its original environment: a virtual environment with the same distributions. On
    other hardware bits cannot be equal, unless the determinism level is "portable".

    --explain replays the steps around the first difference, and prints the first module, backward operation or gradient
    that differs, and a cause if there is evidence for one.

    Exit status: 0 reproduced or sampled, 1 diverged or nondeterministic, 2 not comparable, 3 an input is missing.

    \b
    Examples:
      m5ws reproduce 7c1d
      m5ws reproduce 7c1d --set optimizer.lr=1e-4
      m5ws reproduce 7c1d --env warn --explain
      m5ws reproduce 7c1d --all-segments --parallel 16 --on big --nodes 2
    """
    segments.refuse_useless(context)
    policy = environment.policy(env)
    workspace = names.workspace(context)
    ports = workspace.ports(workspace.open_repository())
    if context.args:
        raise _own_command(ports, names.find_id(ports.repo, run, "run"))
    request = _request(workspace, ports, run, policy, given)
    cluster_options.refuse_alone(on, nodes)
    if on is not None:
        if nodes is not None:
            is_parallel = parallel > 1 and not given["all_segments"]
            _refuse_unshared(ports, request, nodes, rebuilds="rebuild" in env, is_parallel=is_parallel)
        where = (request.original, on)
        cluster_options.submit_command(context, workspace, ports.repo, *where, nodes=nodes or 1, as_json=as_json)
        return
    chosen = segments.select(ports.repo, request.original, given)
    ports = environment.ports(workspace, ports, env, request.original, request.snapshot)
    if given["all_segments"] or given["sample"] is not None:
        is_share = given["share"] is not None
        context.exit(segments.several(workspace, ports, request, chosen, parallel, is_share=is_share, as_json=as_json))
    request = msgspec.structs.replace(request, segment=chosen[0] if chosen else None)
    context.exit(_one(workspace, ports, request, progress=not no_progress, as_json=as_json))


def _request(
    workspace: "Workspace", ports: "Ports", run: str, policy: environment.Policy, given: _Arguments
) -> "ReplayRequest":
    """Return the request, without segments. Raises NotFound, AmbiguousId."""
    from m5ws.reproduce.reproduce import ReplayRequest

    snapshot = given["snapshot"]
    values = {
        **given,
        "original": names.find_id(ports.repo, run, "run"),
        "env": policy,
        "snapshot": names.find_id(ports.repo, snapshot, "snapshot") if snapshot else None,
        "segment": None,
        "recheck": not given["no_recheck"],
        "results": workspace.settings.run.results,
    }
    return msgspec.convert(values, ReplayRequest)


def _refuse_unshared(
    ports: "Ports", request: "ReplayRequest", nodes: int, *, rebuilds: bool, is_parallel: bool
) -> None:
    """Raise UsageError for a replay that several nodes cannot share."""
    from m5ws.attempts import planning
    from m5ws.repository.references import runs
    from m5ws.reproduce import reproduce

    original = runs.load(ports.repo, request.original)
    spec = msgspec.structs.replace(original.spec, nproc=request.nproc or original.spec.nproc)
    planning.refuse_unfit(ports.repo, msgspec.structs.replace(original, spec=spec), ports.environment, nodes)
    reproduce.refuse_other_nodes(ports.repo, original, nodes)
    options = (("--explain", request.explain), ("--env rebuild", rebuilds), ("--parallel", is_parallel))
    if nodes > 1 and (alone := [name for name, given in options if given]):
        raise UsageError(f"{alone[0]} cannot be combined with --nodes {nodes}: it requires one node")


def _own_command(ports: "Ports", run: str) -> UsageError:
    """Return the error for a command after `--`."""
    from m5ws.repository.references import runs

    original = runs.load(ports.repo, run)
    return UsageError(
        f"reproduce repeats the command of run {run}: {shlex.join(original.spec.command)}",
        hint="`--set command:NAME=VALUE` changes an argument. "
        f"`m5ws run {original.snapshot[:12]} -- COMMAND` starts a new run of the same snapshot.",
    )


def _one(workspace: "Workspace", ports: "Ports", request: "ReplayRequest", *, progress: bool, as_json: bool) -> int:
    """Replay a run or a segment of it, print the verdict, and return the exit status."""
    from m5ws.cli.terminal import explanation, verdict
    from m5ws.environment import drift
    from m5ws.reproduce import reproduce

    drifted: list[Change] = []

    def announce(changes: tuple[Change, ...]) -> None:
        drifted.extend(changes)
        environment.announce(changes)

    plan = reproduce.plan(ports, request, workspace.home, workspace.root)
    output.print_note(f"replaying {request.original} as {plan.run.id}")
    try:
        with interrupt.on_signals(), RunProgress(enabled=progress) as shown:
            outcome = reproduce.execute(
                ports,
                request,
                plan,
                announce,
                shown.watch,
                shown.prepare,
                verdict.print_recheck,
                explanation.print_side,
            )
    except KeyboardInterrupt:
        raise reproduce.ReplayInterrupted(f"replay {plan.run.id} was stopped before a verdict was known") from None
    output.print_json(outcome) if as_json else output.echo(verdict.format_verdict(outcome))
    if request.env == "fail" and drift.worst(drifted) in ("can", "does"):
        files = all(change.part == "read" for change in drifted)
        other = "Restore the files. " if files else "`--env rebuild` installs the original environment. "
        output.print_note(f"hint: {other}`--env warn` replays anyway.")
    return outcome.exit_code
