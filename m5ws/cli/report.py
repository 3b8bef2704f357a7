"""`m5ws report`."""

from pathlib import Path

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress


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
@output.json_command
def command(context: click.Context, run: str, target: Path, as_json: bool) -> None:
    """Write one page about a run, for readers without m5ws.

    The page has the verdict and the place where a replay differs, the inputs with their digests, the curves of the run
    and its replays, notes, attempts, the environment, lineage, checkpoints and output files. It needs nothing else: no
    network, no script. An existing page of m5ws is replaced.

    \b
    Example:
      m5ws report 7c1d -o 7c1d.html
    """
    from m5ws.pages import page
    from m5ws.reports import report, report_page

    page.refuse_other_file(target)
    with progress.Bar() as bar:
        bar("reading the records of the run", 0, 0)
        _, repo, run_id = names.open_run(context, run)
        content = report.build(repo, run_id, bar)
    page.write(target, report_page.build(content))
    if as_json:
        verdict = content.verdicts[0].outcome if content.verdicts else None
        output.print_json({"run": run_id, "file": target, "verdict": verdict})
    else:
        output.print_note(f"wrote {target}")
