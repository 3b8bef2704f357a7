"""Options of the commands that can run on a cluster, and the submission of their job."""

from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli import environment
from m5ws.cli.parameters import start_options
from m5ws.cli.parameters.grouped import grouped
from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

on = click.option("--on", metavar="NAME", help="Submit a job to [clusters.NAME] in m5ws.toml, and return.")
nodes = click.option(
    "--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes of the job (default: 1)."
)
options = grouped(on, nodes)


class ClusterArguments(start_options.StartArguments):
    """The values of `options`, and of the options of a start."""

    on: str | None
    nodes: int | None


def refuse_alone(given: ClusterArguments) -> None:
    """Raise UsageError for a number of nodes without a cluster."""
    if given["nodes"] is not None and given["on"] is None:
        raise UsageError("--nodes requires --on NAME, a cluster in m5ws.toml")


def submit(
    workspace: "Workspace",
    repo: "Repository",
    run: "Run",
    given: ClusterArguments,
    nodes: int,
    why: str | None = None,
    command: tuple[str, ...] = (),
) -> None:
    """Submit a job for a run, which is published first if it is new, and print both. A dry run prints the job.

    Raises UsageError for a store that the nodes cannot share, and EngineUnavailable.
    """
    from m5ws.attempts import planning
    from m5ws.engines import submission
    from m5ws.library import actions
    from m5ws.repository.references import notes, runs

    cluster, as_json = given["on"], given["as_json"]
    assert cluster is not None
    environment.policy(given["env"])
    if not command:
        planning.refuse_unfit(repo, run, workspace.environment, nodes)
    settings = workspace.settings_of_nodes()
    shared = submission.cluster_of(settings, cluster).shared
    workspace.refuse_private_store(shared, cluster)
    options = tuple(word for each in given["env"] for word in ("--env", each))
    job = submission.plan(settings, cluster, run.id, workspace.store_url, nodes, options, command)
    planned = submission.sign(job, repo.store.now(), workspace.creator())
    if given["dry_run"]:
        return output.print_json(planned.job) if as_json else output.echo(planned.job.script)
    submission.refuse_unaccepted(settings, planned)
    if run.id not in runs.ids(repo):
        runs.publish(repo, workspace.ports(repo).sign(run))
        if why is not None:
            notes.publish(repo, actions.write_note(workspace, run.id, why, kind="why"))
    if not as_json:
        output.echo(run.id)
    identifier = submission.submit(repo, settings, planned)
    if as_json:
        shown = msgspec.structs.replace(planned.job, settings="")
        return output.print_json({"run": run, "job": shown, "id": identifier})
    return output.print_note(
        f"job {identifier} was submitted to {cluster}, {nodes} {'node' if nodes == 1 else 'nodes'}. "
        f"`m5ws show {run.id}` shows its state, `m5ws wait {run.id}` waits for its end, "
        f"and `m5ws cancel {run.id}` ends it."
    )
