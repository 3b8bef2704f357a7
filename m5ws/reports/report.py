"""All that belongs to one run, for a page that a reader believes: inputs by digest, curves, verdicts and lineage."""

import time

import msgspec

import m5ws
from m5ws.progress import Progress
from m5ws.records.verdict import Verdict
from m5ws.reports import curves
from m5ws.reports.curves import Curves
from m5ws.repository.references import runs
from m5ws.repository.references.parameters import ParameterReader
from m5ws.repository.repository import Repository
from m5ws.runs import history, listing
from m5ws.runs.listing import RunView, SnapshotView

_MOST_REPLAYS = 10
"""Most replays whose curves are drawn: the newest."""


class RunCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of the run, of its original, or of a replay, with a label; `problem` if the ledger is damaged."""

    run: str
    label: str
    points: Curves = {}
    problem: str | None = None


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its snapshot as `m5ws show` has them, its parameters, verdicts (newest first), and curves."""

    version: str
    created_s: float
    view: RunView
    snapshot: SnapshotView
    parameters: dict[str, str]
    verdicts: tuple[Verdict, ...]
    curves: tuple[RunCurves, ...]


def build(repo: Repository, run_id: str, progress: Progress | None = None, now_s: float | None = None) -> RunReport:
    """Return the report on a run. Raises NotFound, CorruptObject.

    A damaged ledger of another run leaves its curve out, with the reason.
    """
    view = listing.view_run(repo, run_id)
    original = view.run.reproduces or run_id
    replays = [row.id for row in view.replays][-_MOST_REPLAYS:]
    names = list(dict.fromkeys([original, run_id, *replays]))
    return RunReport(
        version=m5ws.__version__,
        created_s=time.time() if now_s is None else now_s,
        view=view,
        snapshot=listing.view_snapshot(repo, view.run.snapshot),
        parameters=ParameterReader(repo).of_run(view.run),
        verdicts=tuple(reversed(runs.verdicts(repo, run_id))),
        curves=tuple(_curves(repo, names, original, progress)),
    )


def _curves(repo: Repository, names: list[str], original: str, progress: Progress | None) -> list[RunCurves]:
    result = []
    for position, name in enumerate(names):
        if progress:
            progress("reading ledgers", position, len(names))
        label = f"run {name}" if name == original else f"replay {name}"
        try:
            steps = history.load(repo, name, ranks={"0"}).steps.get(0, {})
            result.append(RunCurves(run=name, label=label, points=curves.of_steps(steps)))
        except runs.UNREADABLE as error:
            result.append(RunCurves(run=name, label=label, problem=str(error)))
    return result
