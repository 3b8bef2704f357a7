"""The page of a comparison of runs: results, changed inputs, and curves."""

from collections.abc import Sequence

from m5ws.pages import charts, page
from m5ws.pages.markup import Child, Markup, tag
from m5ws.reports import curves
from m5ws.reports.comparison import ComparedRun, Curves, Input, RunComparison
from m5ws.repository.ledger.losses import number


def build(comparison: RunComparison, drawn: Sequence[Curves]) -> bytes:
    """Return the page as UTF-8."""
    runs = comparison.runs
    inputs = [change for change in comparison.inputs if change.rating != "cannot"]
    harmless = [change for change in comparison.inputs if change.rating == "cannot"]
    more = page.details(f"{len(harmless)} differences that cannot change bits", _inputs(runs, harmless))
    return page.page(
        f"Comparison of {len(runs)} runs",
        page.section("Results", _results(runs)),
        page.section(
            "Changed inputs",
            _inputs(runs, inputs) or tag("p", "No input that can change bits differs."),
            more if harmless else None,
        ),
        page.section("Curves", *_charts(runs, drawn)),
    )


def label(position: int, run: ComparedRun) -> str:
    """Return the label of a run: its number in the comparison, its id, and its name."""
    return f"{position + 1}: {run.id}" + (f" {run.name}" if run.name else "")


def difference(run: ComparedRun, *, is_first: bool) -> str:
    """Return the first difference of a run from the first one, as text for people."""
    if is_first:
        return "-"
    if run.first is None:
        return f"none in {run.compared:,} common steps" if run.compared else "no common step recorded"
    return f"step {run.first.step}, {run.first.quantity}"


def _results(runs: Sequence[ComparedRun]) -> Markup | None:
    quantities = [name for name in curves.names(run.quantities for run in runs) if name != "loss"]
    heads = ("", "run", "state", "steps", "last loss", "lowest loss", *(f"last {name}" for name in quantities))
    rows = []
    for position, run in enumerate(runs):
        steps = f"{run.last_step:,}" + (f" of {run.total_steps:,}" if run.total_steps else "")
        lowest = None if run.lowest_loss is None else f"{run.lowest_loss:.6g} at step {run.lowest_step}"
        first: list[Child] = [str(position + 1), _name(run), run.state, steps, shown(run.loss), lowest]
        last = [shown(number(run.quantities.get(name))) for name in quantities]
        rows.append([*first, *last, difference(run, is_first=position == 0), run.verdict, _notes(run)])
    return page.table((*heads, "first difference from run 1", "verdict", "notes"), rows)


def _name(run: ComparedRun) -> Markup:
    return tag("span", page.code(run.id), f" {run.name}" if run.name else None)


def _notes(run: ComparedRun) -> Markup | None:
    words = [f"why: {run.why}" if run.why else "", run.outcome or ""]
    text = "; ".join(word for word in words if word)
    return tag("span", text) if text else None


def shown(value: float | None) -> str | None:
    """Return a number for people."""
    return None if value is None else f"{value:.6g}"


def _inputs(runs: Sequence[ComparedRun], inputs: Sequence[Input]) -> Markup | None:
    rows: list[list[Child]] = []
    for change in inputs:
        cells = [
            tag("td", value or "absent", class_="changed" if value != change.values[0] else None)
            for value in change.values
        ]
        rows.append([page.code(change.label), *cells])
    return page.table(("input", *(f"{number}: {run.id}" for number, run in enumerate(runs, 1))), rows)


def _charts(runs: Sequence[ComparedRun], drawn: Sequence[Curves]) -> list[Markup | None]:
    figures = []
    for name in curves.names(drawn):
        lines = [
            charts.Line(label=label(position, run), points=points[name])
            for position, (run, points) in enumerate(zip(runs, drawn, strict=True))
            if name in points
        ]
        figures.append(charts.chart(name, lines))
    return figures
