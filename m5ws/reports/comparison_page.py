"""The page of a comparison of runs, from the template comparison.html: results, changed inputs, and curves."""

from collections.abc import Sequence

from m5ws.pages import page
from m5ws.reports import curves
from m5ws.reports.comparison import RunComparison
from m5ws.reports.curves import Curves
from m5ws.repository.ledger.losses import number


def build(comparison: RunComparison, drawn: Sequence[Curves]) -> str:
    """Return the page."""
    runs = comparison.runs
    quantities = [name for name in curves.names(run.quantities for run in runs) if name != "loss"]
    heads = ["", "run", "state", "steps", "last loss", "lowest loss", *(f"last {name}" for name in quantities)]
    labels = [f"{position}: {run.id}{f' {run.name}' if run.name else ''}" for position, run in enumerate(runs, 1)]
    return page.render(
        "comparison.html",
        title=f"Comparison of {len(runs)} runs",
        runs=list(enumerate(runs, 1)),
        heads=[*heads, "first difference from run 1", "verdict", "notes"],
        quantities=quantities,
        exact=number,
        shown=lambda value: None if value is None else f"{value:.6g}",
        changes=comparison.inputs,
        columns=["input", *(f"{position}: {run.id}" for position, run in enumerate(runs, 1))],
        charts=curves.draw(list(zip(labels, drawn, strict=True))),
    )
