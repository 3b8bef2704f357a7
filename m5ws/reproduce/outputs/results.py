"""Results of scripts without a session: output files, and metrics that the script logged, compared at its end."""

import logging
from collections.abc import Sequence

import msgspec

from m5ws.errors import M5Error
from m5ws.records.verdict import Divergence
from m5ws.repository import checkpoints
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import output_files, surroundings
from m5ws.reproduce.outputs.output_files import OutputReport
from m5ws.runs import history
from m5ws.runs.history import History
from m5ws.runs.outputs import outputs
from m5ws.tracking.interface import Tracker

_log = logging.getLogger(__name__)


def first_difference(
    repo: Repository,
    tracker: Tracker | None,
    comparison: Comparison,
    before: str,
    after: str,
    ignore: Sequence[str] = (),
) -> Divergence | None:
    """Return the first file or metric that differs between two runs.

    Adds the counts of equal ones to `comparison`.
    """
    return files_and_metrics(repo, tracker, comparison, (before, after), ignore)[0]


def files_and_metrics(
    repo: Repository, tracker: Tracker | None, comparison: Comparison, runs: tuple[str, str], ignore: Sequence[str]
) -> tuple[Divergence | None, OutputReport]:
    """Return the first judged difference of two scripts without a session, and the report on their files."""
    report = files(repo, comparison, runs, ignore)
    comparison.equal.update(report.equal)
    metric = _metric(tracker, comparison, *runs)
    if (difference := report.first) is not None:
        first = Divergence(
            step=comparison.original.last_step,
            rank=0,
            quantity=f"file {difference.name}",
            original=difference.original,
            replayed=difference.replayed,
        )
        return first, report
    return comparison.first() or metric, report


def metrics_beside(
    tracker: Tracker | None, comparison: Comparison, runs: tuple[str, str], *, whole: bool
) -> tuple[str, ...]:
    """Return lines on logged metrics that differ. They do not decide, because the scripts recorded steps.

    A replay that is not `whole` logs a part of them.
    """
    try:
        if tracker is None or not (whole or tracker.script_metrics(runs[0])):
            return ()
        metric = _metric(tracker, comparison, *runs) if whole else None
    except M5Error as error:
        return (f"metrics that the script logged itself: {error}",)
    if not whole:
        return ("metrics that the script logged itself: the replay covers a part of the run",)
    if metric is None:
        return ()
    return (f"{metric.quantity} at step {metric.step} differs; the recorded steps decide the verdict",)


def files(repo: Repository, comparison: Comparison, runs: tuple[str, str], ignore: Sequence[str]) -> OutputReport:
    """Return the comparison of the output files of two runs, with lines on files that were not stored."""
    sides = {"the original": comparison.original, "the replay": comparison.replay}
    lines = tuple(dict.fromkeys(line for side, done in sides.items() for line in not_kept(side, done)))
    if any(notice.kind == outputs.NOT_STORED for done in sides.values() for notice in done.notices):
        return OutputReport(not_compared=lines)
    contents = (comparison.original.outputs, comparison.replay.outputs)
    places = (surroundings.load(repo, runs[0]), surroundings.load(repo, runs[1]))
    report = output_files.compare(repo, contents, places, ignore)
    return msgspec.structs.replace(report, not_compared=(*report.not_compared, *lines))


def has_none(repo: Repository, tracker: Tracker | None, run: str) -> bool:
    """Return True if a run is known to have no results."""
    try:
        return not checkpoints.valid(repo, run) and is_nothing(history.load(repo, run), tracker, run)
    except (M5Error, OSError) as error:
        _log.warning("the results of run %s could not be read: %s", run, error)
        return False


def is_nothing(done: History, tracker: Tracker | None, run: str) -> bool:
    """Return True if a run has no steps, no output files and no metrics of its script."""
    return not (done.by_steps or done.outputs is not None or (tracker is not None and tracker.script_metrics(run)))


def not_kept(side: str, done: History) -> list[str]:
    """Return lines on files that the run `side` wrote and that were not stored."""
    kinds = (outputs.NOT_KEPT, outputs.NOT_STORED)
    return [f"output files of {side}: {notice.message}" for notice in done.notices if notice.kind in kinds]


def _metric(tracker: Tracker | None, comparison: Comparison, before: str, after: str) -> Divergence | None:
    if tracker is None:
        return None
    original, replayed = tracker.script_metrics(before), tracker.script_metrics(after)
    differing = []
    for name in sorted(original.keys() | replayed.keys()):
        old, new = _by_step(original.get(name, [])), _by_step(replayed.get(name, []))
        for step in sorted(old.keys() | new.keys()):
            if old.get(step) != new.get(step):
                differing.append((step, name, old.get(step), new.get(step)))
            else:
                comparison.equal["metrics"] += 1
    if not differing:
        return None
    step, name, first_old, first_new = min(differing, key=lambda row: row[:2])
    return Divergence(step=step, rank=0, quantity=f"metric {name}", original=first_old, replayed=first_new)


def _by_step(points: list[tuple[int, str]]) -> dict[int, str]:
    """Return all values of a metric at each step as one text. Values without a step are at step 0."""
    by_step: dict[int, list[str]] = {}
    for step, value in points:
        by_step.setdefault(step, []).append(value)
    return {step: " ".join(sorted(values)) for step, values in by_step.items()}
