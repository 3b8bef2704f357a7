"""`m5ws preflight`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.doctor import rows
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.preflight.node import NodeReport

FAILED = 1


@click.command("preflight")
@output.json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Check this node before a run.

    The space and memory that a run needs come from the newest snapshot and the newest run. Each processor and GPU
    computes results that are known: by mathematics, and by the records of machines of its kind in the store. A check
    that fails is repeated once.

    Exit status: 0 each check passed, 1 one failed.

    \b
    Examples:
      m5ws preflight
      m5ws preflight --json
    """
    from m5ws.preflight import node

    workspace = names.workspace(context)
    repo = workspace.open_repository(create=True)
    with progress.Bar() as bar:
        reports = (node.examine(workspace.machine(repo), bar),)
    passed = all(report.passed for report in reports)
    if as_json:
        output.print_json({"passed": passed, "nodes": reports})
    else:
        _print(reports)
    context.exit(0 if passed else FAILED)


def _print(reports: "tuple[NodeReport, ...]") -> None:
    """Print the checks of all nodes as one table."""
    table = [(report.node, *row) for report in reports for check in report.checks for row in rows(check)]
    output.echo(output.table(("NODE", "CHECK", "STATE", ""), table))
