"""`m5ws compare`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.reports.comparison import Input, RunComparison


@click.command("compare")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=names.Id(("run", "sweep")))
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page with tables and curves to FILE.",
)
@output.json_command
def command(context: click.Context, runs: tuple[str, ...], page: Path | None, as_json: bool) -> None:
    """Compare the inputs and results of 2 to 50 runs.

    RUN may be a sweep, for its runs that have begun. The other runs are compared with the first RUN. The first table
    has the results: last and lowest loss, steps, verdict, and the first step in which a run differs from the first RUN,
    by the records of rank 0. The second table has the inputs that are not the same: code, config keys, tokenizer, data,
    environment and launch.

    --html writes one page that needs nothing else, with the curves of all quantities. An existing page of m5ws is
    replaced.

    \b
    Examples:
      m5ws compare 7c1d 9a04
      m5ws compare 7c1d 9a04 5e77 --html comparison.html
    """
    from m5ws.pages import page as pages
    from m5ws.reports import comparison, comparison_page

    if page is not None:
        pages.refuse_other_file(page)
    with progress.Bar() as bar:
        bar("reading the records of the runs", 0, 0)
        repo = names.workspace(context).open_repository()
        run_ids = list(dict.fromkeys(run for given in runs for run in names.find_runs(repo, given)))
        compared, drawn = comparison.compare(repo, run_ids, bar)
    if page is not None:
        pages.write(page, comparison_page.build(compared, drawn))
        output.print_note(f"wrote {page}")
    if as_json:
        return output.print_json(compared)
    output.echo(_results(compared))
    output.echo("", *_inputs(compared))
    return None


def _results(compared: "RunComparison") -> str:
    rows = []
    for position, run in enumerate(compared.runs):
        steps = f"{run.last_step}/{run.total_steps}" if run.total_steps else str(run.last_step)
        difference = run.difference if position else "-"
        words = [run.name, f"reproduces {run.reproduces}: {run.outcome or 'no verdict'}" if run.reproduces else None]
        name = ", ".join(word for word in (*words, run.note_outcome) if word)
        lowest = "-" if run.lowest_loss is None else f"{output.rounded(run.lowest_loss)} at {run.lowest_step}"
        losses = output.rounded(run.loss), lowest
        rows.append((str(position + 1), run.id, run.standing, steps, *losses, difference, name))
    return output.table(("", "RUN", "STATE", "STEP", "LOSS", "LOWEST", "DIFFERS FROM 1", "NAME"), rows)


def _inputs(compared: "RunComparison") -> list[str]:
    """Return the changed inputs as lines: each value with the numbers of the runs that have it."""
    shown = [row for row in compared.inputs if row.rating != "cannot"]
    lines = ["no input that can change bits differs"]
    if shown:
        lines = [output.table(("INPUT", "VALUES, WITH THE NUMBERS OF THEIR RUNS"), [_input(row) for row in shown])]
    if harmless := len(compared.inputs) - len(shown):
        lines.append(f"{harmless} differences that cannot change bits (--json lists them)")
    return lines


def _input(row: "Input") -> tuple[str, str]:
    by_value: dict[str | None, list[str]] = {}
    for number, value in enumerate(row.values, 1):
        by_value.setdefault(value, []).append(str(number))
    return row.label, "; ".join(f"{output.cut(value)} in {' '.join(found)}" for value, found in by_value.items())
