"""`m5ws report`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import M5Error

if TYPE_CHECKING:
    from m5ws.workspace import Workspace


@click.command("report")
@click.argument("run", type=names.Id(("run",)))
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="Write the page to FILE.",
)
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, target: Path, as_json: bool) -> None:
    """Write one page about a run, for readers without m5ws.

    The page has the verdict and the place where a replay differs, the inputs with their digests, the curves of the run
    and its replays, notes, attempts, the environment, lineage, checkpoints and output files. It needs nothing else: no
    network, no script. An existing page of m5ws is replaced.

    If the workspace tracks runs in MLflow, the page is also attached to the run's page there.

    \b
    Example:
      m5ws report 7c1d -o 7c1d.html
    """
    from m5ws.pages import page
    from m5ws.reports import report, report_page

    page.refuse_other_file(target)
    workspace = names.workspace(context)
    with progress.Bar() as bar:
        bar("reading the records of the run", 0, 0)
        repo = workspace.open_repository()
        run_id = names.find_id(repo, run, "run")
        content = report.build(repo, run_id, bar)
    data = report_page.build(content)
    page.write(target, data)
    with progress.Bar() as bar:
        bar("attaching the page in MLflow", 0, 0)
        problem = _attach(workspace, run_id, data.encode())
    if as_json:
        verdict = content.verdicts[0].outcome if content.verdicts else None
        output.print_json({"run": run_id, "file": target, "verdict": verdict, "not_attached": problem})
    else:
        output.print_note(f"wrote {target}")


def _attach(workspace: "Workspace", run: str, data: bytes) -> str | None:
    """Attach the page to the run in MLflow. Return the reason why it is not there, which is also printed; or None."""
    try:
        if (tracker := workspace.tracker()) is None:
            return "tracking is off in m5ws.toml"
        tracker.attach(run, "report.html", data)
    except (M5Error, OSError) as error:
        output.warn(f"the page is not attached in MLflow: {error}")
        return str(error)
    return None
