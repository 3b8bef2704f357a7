"""`m5ws canary`, and `m5ws canary history`, one file."""

import time
from typing import TYPE_CHECKING

import click

from m5ws.cli.gc import Duration
from m5ws.cli.lazy_group import LazyGroup
from m5ws.cli.parameters import cluster_options, names, new_run
from m5ws.cli.terminal import change_text, interrupt, output
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import NotFound

if TYPE_CHECKING:
    from m5ws.preflight.canary import Turn
    from m5ws.records.canary import Canary
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

COMMANDS = {"history": "List the results of canaries."}
BAD = 1
_STEPS = 10


@click.group("canary", cls=LazyGroup, commands_by_name=COMMANDS, package=__name__, invoke_without_command=True)
@new_run.snapshot
@new_run.of_job(_STEPS, 1)
@click.option("--every", "every_s", type=Duration(1.0), metavar="TIME", help="Repeat after each TIME, such as 1h.")
@cluster_options.command_on
@output.json_command
def command(
    context: click.Context,
    snapshot: str | None,
    overrides: tuple[str, ...],
    nproc: int | None,
    steps: int,
    every_s: float | None,
    on: str | None,
    as_json: bool,
) -> None:
    """Train the first steps of a job, and compare their bits with an earlier result.

    The job is `[run] command` in m5ws.toml with the newest canary's snapshot, or else the newest snapshot. The result
    is stored with the digest of the steps. The first good result for a launch and a kind of hardware is the reference.
    After a bad result, the changes of the environment since the last good result are printed. With --every, the command
    goes on until a result is bad.

    The store keeps the runs of the reference, of the last good result, and of all bad results. They are named `canary`.

    Exit status: 0 equal to the reference, 1 diverged or failed.

    \b
    Examples:
      m5ws canary --steps 20
      m5ws canary --every 1h
      m5ws canary history
    """
    if context.invoked_subcommand is not None:
        return None
    workspace = names.workspace(context)
    repo = workspace.open_repository()
    pinned = names.find_id(repo, snapshot, "snapshot") if snapshot else _choose(repo)
    if on is not None:
        chosen = () if snapshot else ("--snapshot", pinned)
        return cluster_options.submit_command(context, workspace, repo, pinned, on, chosen, as_json=as_json)
    while True:
        result, turn = _run(workspace, pinned, overrides, nproc, steps)
        output.print_json({"result": result, "turn": turn}) if as_json else _print(result, turn)
        if result.outcome != "ok" or every_s is None:
            context.exit(0 if result.outcome == "ok" else BAD)
        time.sleep(every_s)


def _choose(repo: "Repository") -> str:
    """Return the snapshot of the newest canary, or else the newest snapshot. Raises NotFound."""
    from m5ws.repository.references import canaries, snapshots

    results = [each for name in canaries.snapshots(repo) for each in canaries.of_snapshot(repo, name)]
    newest = max(results, key=lambda each: each.created_s, default=None)
    found = newest.snapshot if newest is not None else next((name for name, _ in snapshots.newest(repo)), None)
    if found is None:
        raise NotFound("the store has no snapshot", hint="`m5ws snapshot` takes a snapshot.")
    return found


def _run(
    workspace: "Workspace", snapshot: str, overrides: tuple[str, ...], nproc: int | None, steps: int
) -> "tuple[Canary, Turn | None]":
    """Run one canary, and return its result, and the turn to it if the result before was good."""
    from m5ws.attempts import planning
    from m5ws.preflight import canary
    from m5ws.repository.references import canaries
    from m5ws.snapshot.config import overrides as operation

    repo = workspace.repository()
    launch = planning.spec(workspace.settings.run, planning.RunOptions(nproc=nproc, fingerprint_every=1))
    pinned, launch = operation.change(repo, snapshot, launch, overrides)
    run = canary.new_run(pinned, launch, steps)
    output.print_note(f"training {steps} steps as {run.id}")
    with interrupt.on_signals(), RunProgress() as shown:
        ports = workspace.ports(repo)
        result = canary.execute(ports, run, workspace.home, workspace.root, shown.watch, shown.prepare)
    turns = list(canary.turns(repo, canaries.of_snapshot(repo, pinned))) if result.outcome != "ok" else []
    return result, next((turn for turn in reversed(turns) if turn.bad.kind == result.kind), None)


def _print(result: "Canary", turn: "Turn | None") -> None:
    detail = f": {result.detail}" if result.detail else ""
    output.echo(f"{result.outcome} on {result.host}, {result.steps} steps as {result.run or 'no run'}{detail}")
    if turn is not None:
        print_turn(turn)


def print_turn(turn: "Turn") -> None:
    """Print the changes of the environment from a good to a bad result."""
    places = f"{turn.good.run} on {turn.good.host} (ok) and {turn.bad.run} on {turn.bad.host} ({turn.bad.outcome})"
    output.echo("", f"changes of the environment between {places}:")
    output.echo(*change_text.lines(turn.changes, brief=True))
