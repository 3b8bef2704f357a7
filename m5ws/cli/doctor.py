"""`m5ws doctor`."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.terminal import output
from m5ws.errors import ConfigError, NotFound, UsageError
from m5ws.records.check import Check
from m5ws.wording.lists import count
from m5ws.workspace import find

if TYPE_CHECKING:
    from m5ws.doctor.doctor import Probe
    from m5ws.workspace import Workspace

FAILED = 1
_LIMIT_S = 15.0


@click.command("doctor")
@click.option(
    "--timeout",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=_LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help="Count a check without an answer in this time as broken.",
)
@output.json_command
def command(context: click.Context, limit_s: float, as_json: bool) -> None:
    """Check this machine and this workspace, with a remedy for each failure.

    The checks run in parallel. In a workspace, keys are created in its store and deleted. Outside of a workspace, the
    machine alone is checked. `not needed` marks a thing that is absent, and that no check of this workspace needs.

    Exit status: 0 each check is ok or not needed, 1 something is missing or broken.

    \b
    Examples:
      m5ws doctor
      m5ws doctor --timeout 60 --json
    """
    from m5ws.doctor import doctor

    checks = doctor.examine(_probes(context.find_root().params.get("directory") or Path()), limit_s)
    passed = all(check.passed for check in checks)
    if as_json:
        output.print_json({"passed": passed, "checks": checks})
    else:
        output.echo(output.table(("CHECK", "STATE", ""), [row for check in checks for row in rows(check)]))
    context.exit(0 if passed else FAILED)


def rows(check: Check) -> list[tuple[str, ...]]:
    """Return the row of a check, and a row with its remedy if it has one."""
    row = (check.name, check.state, check.detail)
    return [row, ("", "remedy", check.remedy)] if check.remedy else [row]


def _probes(directory: Path) -> "dict[str, Probe]":
    """Return the checks of the machine, and of the workspace around `directory` if there is one."""
    from m5ws.doctor import machine, servers, versions

    probes: dict[str, Probe] = {
        "workspace": partial(_check_workspace, directory=directory),
        "python": versions.check_python,
        **dict.fromkeys((versions.PACKAGE, *versions.EXTRAS), versions.check_libraries),
        "git": partial(machine.check_git, root=directory.absolute()),
        **machine.PROBES,
    }
    # `workspace` is the check that reports these errors.
    with suppress(NotFound, ConfigError, UsageError):
        workspace = find(directory)
        opened = partial(workspace.repository, near=False, for_dry_run=True)
        probes["store"] = lambda name: servers.check_store(name, opened().store, workspace.store_dir)
        for name in workspace.settings.clusters:
            probes[f"cluster {name}"] = partial(_check_cluster, workspace=workspace, cluster=name)
        probes["tracking"] = lambda name: servers.check_tracking(name, workspace.tracker(), workspace.tracking_uri)
    return probes


def _check_cluster(name: str, workspace: "Workspace", cluster: str) -> Check:
    """Check that the engine of a cluster would accept a job of a run."""
    from m5ws.engines.task_files import SUBMIT
    from m5ws.library import clusters

    checked = clusters.Cluster(workspace, cluster)
    planned = checked.plan("0" * 12, checked.most_nodes or 1)
    checked.refuse_unaccepted(planned)
    if planned.job.engine in SUBMIT:
        return Check(name, "ok", f"m5ws writes files for {planned.job.engine}, and does not ask it")
    return Check(name, "ok", f"{planned.job.engine} accepts jobs of {count(planned.job.nodes, 'node')}")


def _check_workspace(name: str, directory: Path) -> Check:
    try:
        workspace = find(directory)
        extends = f", extends {workspace.settings.extends}" if workspace.settings.extends else ""
        return Check(name, "ok", f"{workspace.root}{extends}")
    except NotFound as error:
        return Check(name, "not needed", str(error))
