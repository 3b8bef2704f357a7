"""What a script leaves behind that uses no session: files, and metrics that it logged itself, compared at its end."""

import logging
from collections.abc import Sequence

from m5ws.errors import M5Error
from m5ws.records.verdict import Divergence
from m5ws.repository import checkpoints
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import output_files, surroundings
from m5ws.reproduce.outputs.output_files import Report
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
    """Return the first file or metric that differs from run `before` to `after`, and count in those that are equal."""
    return files_and_metrics(repo, tracker, comparison, (before, after), ignore)[0]


def files_and_metrics(
    repo: Repository, tracker: Tracker | None, comparison: Comparison, runs: tuple[str, str], ignore: Sequence[str]
) -> tuple[Divergence | None, Report]:
    """Return the first judged difference of two scripts without a session, and all that their files show."""
    report = files(repo, comparison, runs, ignore)
    comparison.equal.update(report.equal)
    metric = _metric(tracker, comparison, *runs)
    if (found := report.first) is not None:
        first = Divergence(
            step=comparison.original.last_step,
            rank=0,
            quantity=f"file {found.name}",
            original=found.original,
            replayed=found.replayed,
        )
        return first, report
    return comparison.first() or metric, report


def metrics_beside(
    tracker: Tracker | None, comparison: Comparison, runs: tuple[str, str], *, whole: bool
) -> tuple[str, ...]:
    """Return lines on metrics that scripts with steps logged themselves, which do not decide: those not equal.

    A replay that is not `whole` logs a part of them.
    """
    try:
        if tracker is None or not (whole or tracker.script_metrics(runs[0])):
            return ()
        found = _metric(tracker, comparison, *runs) if whole else None
    except M5Error as error:
        return (f"metrics that the script logged itself: {error}",)
    if not whole:
        return ("metrics that the script logged itself: the replay is of a part of the run",)
    return (f"{found.quantity} at step {found.step} differs: the recorded steps decide",) if found is not None else ()


def files(repo: Repository, comparison: Comparison, runs: tuple[str, str], ignore: Sequence[str]) -> Report:
    """Return how the output files of two runs differ; what is not kept of either is listed."""
    sides = {"the original": comparison.original, "the replay": comparison.replay}
    lines = tuple(dict.fromkeys(line for side, done in sides.items() for line in not_kept(side, done)))
    if any(notice.kind == outputs.NOT_STORED for done in sides.values() for notice in done.notices):
        return Report(not_compared=lines)
    contents = (comparison.original.outputs, comparison.replay.outputs)
    places = (surroundings.load(repo, runs[0]), surroundings.load(repo, runs[1]))
    found = output_files.compare(repo, contents, places, ignore)
    return Report(
        differences=found.differences,
        equal=found.equal,
        unjudged=found.unjudged,
        not_compared=(*found.not_compared, *lines),
        clocks=found.clocks,
        places=found.places,
    )


def are_missing(repo: Repository, tracker: Tracker | None, run: str) -> bool:
    """Return True if a run is known to have no results that could be compared."""
    try:
        return not checkpoints.valid(repo, run) and is_nothing(history.load(repo, run), tracker, run)
    except (M5Error, OSError) as error:
        _log.warning("the results of run %s could not be read: %s", run, error)
        return False


def is_nothing(done: History, tracker: Tracker | None, run: str) -> bool:
    """Return True if a run has neither steps, nor output files, nor metrics of its script."""
    return not (done.by_steps or done.outputs is not None or (tracker is not None and tracker.script_metrics(run)))


def not_kept(side: str, done: History) -> list[str]:
    """Return lines on the files that a run, named by `side`, wrote and that are not kept."""
    kinds = (outputs.NOT_KEPT, outputs.NOT_STORED)
    return [f"output files of {side}: {notice.message}" for notice in done.notices if notice.kind in kinds]


def _metric(tracker: Tracker | None, comparison: Comparison, before: str, after: str) -> Divergence | None:
    if tracker is None:
        return None
    one, two = tracker.script_metrics(before), tracker.script_metrics(after)
    found = []
    for name in sorted(one.keys() | two.keys()):
        old, new = _by_step(one.get(name, [])), _by_step(two.get(name, []))
        for step in sorted(old.keys() | new.keys()):
            if old.get(step) != new.get(step):
                found.append((step, name, old.get(step), new.get(step)))
            else:
                comparison.equal["metrics"] += 1
    if not found:
        return None
    step, name, first_old, first_new = min(found, key=lambda row: row[:2])
    return Divergence(step=step, rank=0, quantity=f"metric {name}", original=first_old, replayed=first_new)


def _by_step(points: list[tuple[int, str]]) -> dict[int, str]:
    """Return all of a metric's values at each step as one text: without a step, every value is at step 0."""
    found: dict[int, list[str]] = {}
    for step, value in points:
        found.setdefault(step, []).append(value)
    return {step: " ".join(sorted(values)) for step, values in found.items()}
