"""`m5ws preflight`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli import certify
from m5ws.cli.doctor import rows
from m5ws.cli.parameters import cluster_options, names, new_run
from m5ws.cli.parameters.script import ScriptCommand, script
from m5ws.cli.terminal import output, progress
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.preflight.node import NodeReport
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

FAILED = 1
_STEPS = 4


@click.command("preflight", cls=ScriptCommand)
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@new_run.of_job(_STEPS, 2, "Number of steps of the snapshot's job with m5ws.session.")
@cluster_options.nodes
@click.option("--on", metavar="NAME", help="Check the nodes of [clusters.NAME] in m5ws.toml.")
@click.option("--store", metavar="URL", help="Check this machine for a run with this store, without a workspace.")
@cluster_options.scratch
@output.json_command
def command(
    context: click.Context,
    snapshot: str | None,
    overrides: tuple[str, ...],
    nproc: int | None,
    steps: int,
    nodes: int | None,
    on: str | None,
    store: str | None,
    scratch: Path,
    as_json: bool,
) -> None:
    """Check this node before a run, or the job of a snapshot at a small size.

    Without SNAPSHOT, this node is checked, or with --on the nodes of a cluster: all hosts, or --nodes of them. The
    space and memory that a run needs come from the newest snapshot and the newest run. Each processor and GPU computes
    results that are known: by mathematics, and by the records of machines of its kind in the store. A check that fails
    is repeated once.

    With SNAPSHOT, COMMAND (default: `[run] command` in m5ws.toml) trains for a few steps with a checkpoint after each.
    Then new processes restore one of the checkpoints and train to the last step, and the bits are compared, as by
    `m5ws certify --restores 1`. A script without m5ws.session trains to its own end, is killed late in a second
    training, and is resumed.

    Exit status: 0 each check passed, 1 one failed, 2 the resume could not be compared, 3 the training did not finish.

    \b
    Examples:
      m5ws preflight
      m5ws preflight --on big --nodes 16
      m5ws preflight 7c1d --set batch=2 --json
    """
    if sum(each is not None for each in (snapshot, on, store)) > 1:
        raise UsageError("SNAPSHOT, --on and --store exclude each other", hint="Give a single option, or none.")
    if snapshot is not None:
        job = {"snapshot": snapshot, "overrides": overrides, "nproc": nproc, "steps": steps}
        context.invoke(certify.command, **job, restores=1, as_json=as_json)
        return
    if script(context) or overrides or nproc is not None:
        raise UsageError(
            "COMMAND, --set and --nproc require SNAPSHOT",
            hint="`m5ws preflight` without a snapshot checks this node. `m5ws snapshot` prints the id of a snapshot.",
        )
    cluster_options.refuse_alone(on, nodes)
    if on is not None:
        reports = _check_cluster(names.workspace(context), on, nodes)
    elif store is not None:
        reports = _check_store_user(store, scratch)
    else:
        workspace = names.workspace(context)
        reports = _examine(workspace, workspace.open_repository(create=True))
    passed = all(report.passed for report in reports)
    output.print_json({"passed": passed, "nodes": reports}) if as_json else _print(reports)
    context.exit(0 if passed else FAILED)


def _check_store_user(store: str, scratch: Path) -> "tuple[NodeReport, ...]":
    """Check this machine as an agent would use it, without a workspace."""
    from m5ws.cli.agent import make_scratch
    from m5ws.config.settings import Settings, StoreSettings
    from m5ws.workspace import Workspace

    own, settings = make_scratch(scratch, 0), Settings(store=StoreSettings(url=store))
    workspace = Workspace(own / "workspace", settings, dict(os.environ), own)
    return _examine(workspace, workspace.repository())


def _examine(workspace: "Workspace", repo: "Repository") -> "tuple[NodeReport, ...]":
    from m5ws.preflight import needs, node

    with progress.Bar() as bar:
        return (node.examine(workspace.machine(repo), needs.find(repo), bar),)


def _check_cluster(workspace: "Workspace", name: str, nodes: int | None) -> "tuple[NodeReport, ...]":
    """Check nodes of a cluster at the same time. A node without a result has failed."""
    from m5ws.library import clusters
    from m5ws.preflight import node

    output.print_note(f"checking nodes of {name}")
    workspace.open_repository(create=True)
    return tuple(map(node.read_report, clusters.Cluster(workspace, name).check_nodes(nodes)))


def _print(reports: "tuple[NodeReport, ...]") -> None:
    """Print the checks of all nodes as one table."""
    table = [(report.node, *row) for report in reports for check in report.checks for row in rows(check)]
    output.echo(output.table(("NODE", "CHECK", "STATE", ""), table))
