"""`m5ws agent`."""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli import environment
from m5ws.cli.parameters import cluster_options, names, new_run
from m5ws.cli.terminal import attempt, interrupt, output
from m5ws.cli.terminal.progress import Bar
from m5ws.errors import M5Error, UsageError

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.link import Connection
    from m5ws.agent.ports import Ports
    from m5ws.records.job import Job
    from m5ws.records.launch import Place
    from m5ws.records.nodes import Planned
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_COMMAND_S = 3600.0
"""The longest wait for the next attempt of a job's command, which may compare results or read records before."""


class Finished(Exception):
    """The run of an agent has finished: the agent has nothing to do."""


@click.command("agent")
@click.argument("run", type=names.Id(("run",)))
@cluster_options.scratch
@click.option("--store", metavar="URL", help="Store of the run, without a workspace; with --job.")
@click.option("--job", metavar="NAME", help="Job of `m5ws run --on`, whose record has the settings of the workspace.")
@click.option("--check", is_flag=True, help="End when this machine has opened --store and made its scratch folder.")
@environment.policy_option
@output.json_command
def command(
    context: click.Context,
    run: str,
    scratch: Path,
    store: str | None,
    job: str | None,
    check: bool,
    env: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the part of one node in the next attempt of a run.

    A scheduler starts one agent on each node. Variables name the node's place: M5WS_NODE (from 0), M5WS_NODES,
    M5WS_MASTER (HOST:PORT of node 0; the next port must be free too) and M5WS_JOB; or the variables of AWS Batch,
    SkyPilot or dstack; or Slurm's variables and M5WS_MASTER. Node 0 leads. All nodes need the workspace and its store;
    agents of `m5ws run --on` need the store alone.

    Exit status: 0 the run finished, 1 it failed, 75 start all agents again, 130 interrupted.

    \b
    Example:
      M5WS_NODE=0 M5WS_NODES=2 M5WS_MASTER=10.0.0.1:29500 M5WS_JOB=7 m5ws agent 7c1d
    """
    from m5ws.agent import link, places, work_files
    from m5ws.attempts import interventions
    from m5ws.library import clusters

    if (store is None) != (job is None) or (check and store is None):
        raise UsageError("--store and --job belong together, and --check requires them")
    if check and store is not None:
        _check(store, scratch)
        return
    place = places.read(os.environ)
    with clusters.cancelling(store, run, job) if store and job else nullcontext():
        workspace = _workspace(context, run, scratch, store, job, place)
        repo = workspace.open_repository()
    if (submitted := workspace.job) is not None:
        interventions.refuse_cancelled_job(repo, submitted)
        # Nobody looks at them on a node, and its disk is small.
        work_files.remove_inputs(workspace.home)
        if submitted.command:
            is_leader = place.node == 0
            context.exit(_run_command(workspace, submitted) if is_leader else _serve(workspace, repo, submitted))
    run_id = names.find_id(repo, run, "run")
    try:
        if place.node == 0:
            _lead(workspace, repo, run_id, env, as_json=as_json)
            return
        status = _follow(workspace, repo, run_id, env)
    except Finished as reason:
        output.print_note(str(reason))
        status = 0
    except KeyboardInterrupt as request:
        if str(request) != signal.SIGUSR2.name:
            raise
        # The end of the scheduler's time came before the attempt began.
        status = link.StartAgain.exit_code
    if as_json:
        output.print_json({"run": run_id, "node": place.node, "status": status})
    context.exit(status)


def _workspace(
    context: click.Context, run: str, scratch: Path, store: str | None, job: str | None, place: "Place"
) -> "Workspace":
    """Return the workspace of this agent, at the place of its node."""
    from m5ws.library import clusters

    own = make_scratch(scratch, place.node)
    if store is not None and job is not None:
        workspace = clusters.workspace_of(store, run, job, own, os.environ)
    else:
        # Other agents share the checkout.
        workspace = replace(names.workspace(context), scratch=own)
    return replace(workspace, place=place)


def _check(store: str, scratch: Path) -> None:
    """Open a store and make a scratch folder, as an agent here would. Raises M5Error."""
    from m5ws.repository.repository import Repository
    from m5ws.store import open_store

    Repository.open(open_store(store))
    make_scratch(scratch, 0)


def make_scratch(scratch: Path, node: int) -> Path:
    """Return the folder of a node's agent. Raises UsageError for a variable that this node lacks."""
    from m5ws.agent import places

    parent = os.path.expandvars(scratch)
    if "$" in parent:
        raise UsageError(f"this node has no variable for --scratch {parent}", hint="Set it, or name another folder.")
    return places.make_scratch(Path(parent), node)


def _refuse_finished(repo: "Repository", run_id: str) -> None:
    """Raise Finished if a run has finished: another job did, or this job was started again meanwhile."""
    from m5ws.repository.ledger import ledger
    from m5ws.runs import state

    if ledger.attempts(repo, run_id) and state.load_newest(repo, run_id).standing == "finished":
        raise Finished(f"run {run_id} has finished")


def _lead(workspace: "Workspace", repo: "Repository", run_id: str, env: tuple[str, ...], *, as_json: bool) -> None:
    """Lead the next attempt, and report its result. Raises as `attempt.execute`."""
    from m5ws.agent import link
    from m5ws.attempts import interventions
    from m5ws.library import clusters
    from m5ws.repository.ledger import ledger

    begun = ledger.attempts(repo, run_id)
    try:
        _refuse_finished(repo, run_id)
        attempt.execute(*_plan(workspace, repo, run_id, env), env, enabled=True, as_json=as_json)
    except M5Error as error:
        is_final = error.exit_code not in (link.StartAgain.exit_code, interventions.Cancelled.exit_code)
        with suppress(M5Error, OSError):
            if workspace.job is not None and is_final and ledger.attempts(repo, run_id) == begun:
                clusters.cancel_unbegun(repo, workspace.job, error)
        raise


def _plan(workspace: "Workspace", repo: "Repository", run_id: str, env: tuple[str, ...]) -> "tuple[Ports, AttemptPlan]":
    """Return the ports and the plan of the next attempt. Tells the followers of an error, and raises it."""
    from m5ws.agent import link, places, recovery
    from m5ws.attempts import followers, planning, restarting
    from m5ws.repository.references import runs
    from m5ws.repository.transfer import local_copies

    try:
        # The ranks of a killed agent may still publish a checkpoint, from which the next attempt continues.
        recovery.deliver_run(repo, run_id, workspace.home, workspace.work_root, workspace.kept, output.print_note)
        run = planning.resumed(repo, run_id)
        folder = places.folder_of_copies(workspace.settings.checkpoint, workspace.environment)
        local_copies.publish_left(repo, run_id, folder)
        ports, plan = new_run.plan(workspace, repo, run, env)
        return ports, restarting.mark(ports, plan)
    except Exception as error:
        if workspace.place.nodes > 1:
            key = link.key_of(workspace.job or runs.load(repo, run_id))
            followers.refuse(workspace.place, key, getattr(error, "exit_code", 1))
        raise


def _follow(workspace: "Workspace", repo: "Repository", run_id: str, env: tuple[str, ...]) -> int:
    """Follow the leader of the next attempt to its end, and return its exit status. Raises StartAgain, LaunchFailed."""
    from m5ws.agent import places
    from m5ws.attempts import interventions, leader
    from m5ws.repository.references import runs
    from m5ws.repository.transfer import local_copies

    def look() -> None:
        _refuse_finished(repo, run_id)
        if workspace.job is not None:
            interventions.refuse_cancelled_job(repo, workspace.job)

    _refuse_finished(repo, run_id)
    # Before this node joins: the leader publishes when all nodes have come.
    folder = places.folder_of_copies(workspace.settings.checkpoint, workspace.environment)
    local_copies.upload(repo, run_id, folder)
    with interrupt.on_signals(), Bar() as bar:
        led = _join(workspace, workspace.job or runs.load(repo, run_id), look, leader.JOIN_S, bar)
        return _execute(workspace, repo, *led, env, bar)


def _run_command(workspace: "Workspace", job: "Job") -> int:
    """Run the command of a job, whose attempts other nodes follow. Return its exit status, which all nodes get."""
    from m5ws import cli
    from m5ws.agent import link
    from m5ws.attempts import followers

    status = cli.main(job.command, workspace)
    if workspace.place.nodes > 1 and status != link.StartAgain.exit_code:
        followers.refuse(workspace.place, link.key_of(job), status)
    return status


def _serve(workspace: "Workspace", repo: "Repository", job: "Job") -> int:
    """Follow all attempts of a job's command, which node 0 runs, and return the exit status of the command."""
    from m5ws.agent import link
    from m5ws.attempts import follower, interventions

    while True:
        with interrupt.on_signals(), Bar() as bar:
            try:
                led = _join(workspace, job, partial(interventions.refuse_cancelled_job, repo, job), _COMMAND_S, bar)
            except follower.NotBegun as ended:
                return ended.exit_code
            try:
                status = _execute(workspace, repo, *led, (), bar)
            except follower.NotBegun as refused:
                status = refused.exit_code
            # The command of node 0 goes on after any other end of an attempt.
            if status == link.StartAgain.exit_code:
                return status


def _join(
    workspace: "Workspace", record: "Job | Run", look: Callable[[], None], join_s: float, bar: "Bar"
) -> "tuple[Connection, Planned]":
    """Return a connection to the leader, and its plan. Raises StartAgain, NotBegun, and the errors of `look`."""
    from m5ws.agent import link
    from m5ws.attempts import follower, interventions

    def look_if_possible() -> None:
        try:
            look()
        except interventions.Cancelled:
            raise
        except (M5Error, OSError) as error:
            output.print_note(f"the store does not answer: {error}")

    bar(f"waiting for node 0, {workspace.place.master}", 0, 0)
    return follower.join(workspace.place, link.key_of(record), join_s, look_if_possible)


def _execute(
    workspace: "Workspace",
    repo: "Repository",
    connection: "Connection",
    led: "Planned",
    env: tuple[str, ...],
    bar: "Bar",
) -> int:
    """Run the part of this node in an attempt, and return its exit status. Raises as `follower.execute`."""
    from m5ws.attempts import follower

    try:
        ports, plan = new_run.plan(workspace, repo, led.run, env, led=led)
        return follower.execute(ports, plan, connection, bar)
    except (M5Error, OSError) as error:
        follower.give_up(connection, error)
        raise
    finally:
        connection.close()
