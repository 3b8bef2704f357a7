"""`m5ws agent`."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli import environment
from m5ws.cli.parameters import names, new_run
from m5ws.cli.terminal import attempt, interrupt, output
from m5ws.errors import M5Error, UsageError

if TYPE_CHECKING:
    from m5ws.records.job import Job
    from m5ws.records.launch import Place
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace


class Cancelled(M5Error):
    """A job was cancelled before its agents began."""

    exit_code = 130


class Finished(Exception):
    """The run of an agent has finished: the agent has nothing to do."""


@click.command("agent")
@click.argument("run", type=names.Id(("run",)))
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    envvar="TMPDIR",
    default=Path("/tmp"),  # noqa: S108  the agent makes a private folder in it
    help="Local disk of this node, for work directories (default: TMPDIR).",
)
@click.option("--store", metavar="URL", help="Store of the run, without a workspace; with --job.")
@click.option("--job", metavar="NAME", help="Job of `m5ws run --on`, whose record has the settings of the workspace.")
@environment.policy_option
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    run: str,
    scratch: Path,
    store: str | None,
    job: str | None,
    env: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the part of one node in the next attempt of a run.

    A scheduler starts one agent on each node. Variables name the node's place: M5WS_NODE (from 0), M5WS_NODES,
    M5WS_MASTER (HOST:PORT of node 0; the next port must be free too) and M5WS_JOB; or Slurm's variables and
    M5WS_MASTER. Node 0 leads. All nodes need the workspace and its store; agents of `m5ws run --on` need the store
    alone.

    Exit status: 0 the run finished, 1 it failed, 75 start all agents again, 130 interrupted.

    \b
    Example:
      M5WS_NODE=0 M5WS_NODES=2 M5WS_MASTER=10.0.0.1:29500 M5WS_JOB=7 m5ws agent 7c1d
    """
    from m5ws.agent import link, places, work_files
    from m5ws.library import clusters

    if (store is None) != (job is None):
        raise UsageError("--store and --job belong together")
    place = places.read(os.environ)
    own = places.make_scratch(Path(os.path.expandvars(scratch)), place.node)
    if store is not None and job is not None:
        workspace = clusters.workspace_of(store, run, job, own, os.environ)
    else:
        # Other agents share the checkout.
        workspace = replace(names.workspace(context), scratch=own)
    repo = workspace.open_repository()
    if (submitted := workspace.job) is not None:
        _refuse_cancelled(repo, submitted)
        # Nobody looks at them on a node, and its disk is small.
        work_files.remove_inputs(workspace.home)
        if submitted.command:
            from m5ws import cli

            context.exit(cli.main(submitted.command, workspace))
    run_id = names.find_id(repo, run, "run")
    try:
        _refuse_finished(repo, run_id)
        if place.node == 0:
            _lead(workspace, repo, run_id, place, env, as_json=as_json)
            return
        status = _follow(workspace, repo, run_id, place, env)
    except Finished as reason:
        output.print_note(str(reason))
        status = 0
    except KeyboardInterrupt as request:
        if str(request) != signal.SIGUSR2.name:
            raise
        # The end of the scheduler's time came before the attempt began.
        status = link.NodeLost.exit_code
    if as_json:
        output.print_json({"run": run_id, "node": place.node, "status": status})
    context.exit(status)


def _refuse_cancelled(repo: "Repository", job: "Job") -> None:
    """Raise Cancelled if a request in the store has cancelled a job."""
    from m5ws.repository.references import jobs

    if (request := jobs.cancel_of_job(repo, job)) is not None:
        raise Cancelled(f"job {job.name} was cancelled from {request.host or 'another machine'}")


def _refuse_finished(repo: "Repository", run_id: str) -> None:
    """Raise Finished if a run has finished: another job did, or this job was started again meanwhile."""
    from m5ws.repository.ledger import ledger
    from m5ws.runs import state

    if ledger.attempts(repo, run_id) and state.load_newest(repo, run_id).standing == "finished":
        raise Finished(f"run {run_id} has finished")


def _lead(
    workspace: "Workspace", repo: "Repository", run_id: str, place: "Place", env: tuple[str, ...], *, as_json: bool
) -> None:
    """Lead the next attempt, and report its result. Raises as `attempt.execute`."""
    from m5ws.agent import link, recovery
    from m5ws.attempts import followers, planning
    from m5ws.repository.ledger import ledger
    from m5ws.repository.references import runs

    try:
        if ledger.attempts(repo, run_id):
            # The ranks of a killed agent may still publish a checkpoint, from which the next attempt continues.
            recovery.deliver_run(repo, run_id, workspace.home, workspace.work_root, workspace.kept, output.print_note)
            run = planning.resumed(repo, run_id)
        else:
            run = runs.load(repo, run_id)
        ports, plan = new_run.plan(workspace, repo, run, env, place=place)
    except M5Error as error:
        if place.nodes > 1:
            followers.refuse(place, link.key_of(runs.load(repo, run_id)), error.exit_code)
        raise
    attempt.execute(ports, plan, env, enabled=True, as_json=as_json)


def _follow(workspace: "Workspace", repo: "Repository", run_id: str, place: "Place", env: tuple[str, ...]) -> int:
    """Follow the leader of the next attempt to its end, and return its exit status. Raises NodeLost, LaunchFailed."""
    from m5ws.agent import link
    from m5ws.attempts import follower, leader
    from m5ws.cli.terminal.progress import Bar
    from m5ws.repository.references import runs

    run = runs.load(repo, run_id)

    def look() -> None:
        try:
            _refuse_finished(repo, run_id)
            if workspace.job is not None:
                _refuse_cancelled(repo, workspace.job)
        except Cancelled:
            raise
        except (M5Error, OSError) as error:
            output.print_note(f"the store does not answer: {error}")

    with interrupt.on_signals(), Bar() as bar:
        bar(f"waiting for node 0, {place.master}", 0, 0)
        connection, led = follower.join(place, link.key_of(run), leader.JOIN_S, look)
        try:
            ports, plan = new_run.plan(workspace, repo, run, env, place=place, led=led)
            return follower.execute(ports, plan, connection, bar)
        except (M5Error, OSError) as error:
            follower.give_up(connection, error)
            raise
        finally:
            connection.close()
