"""The delivered results of two runs, collected from the store and the tracker, and their comparison."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from m5ws.config import result_patterns
from m5ws.errors import M5Error
from m5ws.outputs import merging
from m5ws.records.ledger import COMPLETE
from m5ws.records.outputs import OutputFiles
from m5ws.records.reasons import Gap, Side
from m5ws.records.tree import Entry
from m5ws.records.verdict import ComparedItem, Divergence, ItemReason
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import output_files, tensor_files
from m5ws.reproduce.outputs.content import Content
from m5ws.reproduce.outputs.items import Contents
from m5ws.reproduce.outputs.output_files import OutputReport, OutputRules, Results
from m5ws.runs import history
from m5ws.runs.history import History
from m5ws.tracking.interface import Fetch, LoggedResults, Tracker

_log = logging.getLogger(__name__)


def rules(results: Sequence[str], *, strict: bool = False) -> OutputRules:
    """Return the rules for patterns of `[run] results`, which `config.reader` has checked."""
    return OutputRules(results=tuple(map(result_patterns.parse, results)), strict=strict)


def first_difference(
    repo: Repository,
    tracker: Tracker | None,
    comparison: Comparison,
    before: str,
    after: str,
    judged: OutputRules | None = None,
) -> Divergence | None:
    """Return the first difference of two runs that ended: of steps and state, else of their delivered results.

    Adds the counts of equal results that decide to `comparison`.
    """
    report = compare(repo, tracker, comparison, (before, after), judged or OutputRules())
    comparison.equal.update(report.evidence)
    return comparison.first() or divergence(report, comparison.original.last_step)


def compare(
    repo: Repository,
    tracker: Tracker | None,
    comparison: Comparison,
    runs: tuple[str, str],
    judged: OutputRules,
    *,
    ends_early: bool = False,
) -> OutputReport:
    """Return the comparison of the delivered results of two runs. Raises NotFound, CorruptObject.

    Nothing is compared if a run did not end by itself, if the replay of a segment ends earlier than the original, or if
    the files of a run could not be stored.
    """
    done = comparison.original, comparison.replay
    with ExitStack() as stack:
        reason = _unjudged(comparison, ends_early=ends_early)
        # MLflow's import takes seconds.
        has_logged = done[0].logged or done[1].logged
        logged, unread = _logged(tracker if has_logged else None, runs, stack if reason is None else None)
        if reason is not None:
            # The nodes of a failed run may have left different content at one path.
            before, after = (_with_files_if_possible(repo, *each) for each in zip(done, logged, strict=True))
            report = output_files.list_uncompared((before, after), reason)
        else:
            sides = (_with_files(repo, done[0], logged[0]), _with_files(repo, done[1], logged[1]))
            has_steps = bool(comparison.equal) or comparison.first() is not None
            report = output_files.compare(sides, judged, has_steps=has_steps)
    lost = dict.fromkeys((*not_kept("original", done[0]), *not_kept("replay", done[1])))
    return msgspec.structs.replace(report, items=(*report.items, *unread), not_compared=tuple(lost))


def divergence(report: OutputReport, last_step: int) -> Divergence | None:
    """Return the first judged difference of results; None without one."""
    item = report.first
    if item is None:
        return None
    return Divergence(
        step=last_step,
        rank=0,
        kind=item.kind,
        quantity=item.name,
        place=item.place,
        original=item.original,
        replayed=item.replayed,
    )


def has_none(repo: Repository, tracker: Tracker | None, run: str) -> bool:
    """Return True if a run is known to have no results."""
    try:
        return not checkpoints.valid(repo, run) and is_nothing(history.load(repo, run), tracker, run)
    except (M5Error, OSError) as error:
        _log.warning("the results of run %s could not be read: %s", run, error)
        return False


def is_nothing(done: History, tracker: Tracker | None, run: str) -> bool:
    """Return True if a run has no steps, no output files, and its script logged nothing."""
    if done.by_steps or done.outputs:
        return False
    return tracker is None or not done.logged or tracker.logged(run) == LoggedResults()


def not_kept(side: Side, done: History) -> list[Gap]:
    """Return the files that the run `side` wrote and that were not stored."""
    notices = (notice for notice in done.notices if notice.kind in ("outputs-not-kept", "outputs-not-stored"))
    return [Gap(kind="files not kept", side=side, name=notice.message) for notice in notices]


def _unjudged(comparison: Comparison, *, ends_early: bool) -> ItemReason | None:
    """Return the reason why the results of two runs are not comparable; None if they are."""
    original, replay = comparison.original, comparison.replay
    if original.outcome not in COMPLETE:
        return "the original did not end by itself"
    if replay.outcome not in COMPLETE:
        return "the replay did not end by itself"
    if _lacks_files(original):
        return "the original could not store its output files"
    if _lacks_files(replay):
        return "the replay could not store its output files"
    return "the replay ends earlier than the original" if ends_early else None


def _lacks_files(done: History) -> bool:
    return any(notice.kind == "outputs-not-stored" for notice in done.notices)


def _logged(
    tracker: Tracker | None, runs: tuple[str, str], stack: ExitStack | None
) -> tuple[tuple[Results, Results], tuple[ComparedItem, ...]]:
    """Return all that the scripts of two runs logged. Copies of artifacts are removed with the stack; None: no copies.

    If the tracker cannot be read, return nothing, and an item with the reason.
    """
    if tracker is None:
        return (Results(), Results()), ()
    try:
        return (_fetch(tracker.logged(runs[0]), stack), _fetch(tracker.logged(runs[1]), stack)), ()
    except M5Error as error:
        name = "of the tracker: metrics, parameters and artifacts that the script logged"
        item = ComparedItem(
            kind="result", name=name, status="not compared", judged=True, reason="unreadable", problem=str(error)
        )
        return (Results(), Results()), (item,)


def _fetch(logged: LoggedResults, stack: ExitStack | None) -> Results:
    artifacts: dict[str, Contents] = {name: {} for name in logged.artifacts}
    if stack is not None and artifacts:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        artifacts = {name: _fetched(folder, each) for name, each in logged.artifacts.items()}
    return Results(artifacts=artifacts, parameters=logged.parameters, metrics=logged.metrics)


def _fetched(folder: Path, fetches: Sequence[Fetch]) -> Contents:
    """Return the different contents of an artifact, copied into new folders in `folder`. Raises M5Error."""
    contents = {}
    for fetch in fetches:
        path = fetch(Path(tempfile.mkdtemp(dir=folder)))
        with path.open("rb") as file:
            digest = tensor_files.digest_stream(file)
        head, opened = partial(_read_head, path), partial(_open, path)
        contents[digest] = Content(digest=digest, size_bytes=path.stat().st_size, head=head, open=opened)
    return contents


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(tensor_files.HEAD_BYTES)


def _with_files(repo: Repository, done: History, logged: Results) -> Results:
    """Return the results of a run: its output files, and the results that its script logged."""
    records = [repo.objects.get_record(event.record, OutputFiles) for event in done.outputs]
    files = {entry.name: _stored(repo, entry) for entry in merging.merge(repo, records).entries}
    return msgspec.structs.replace(logged, files=files)


def _with_files_if_possible(repo: Repository, done: History, logged: Results) -> Results:
    try:
        return _with_files(repo, done, logged)
    except merging.OutputsConflict:
        return logged


def _stored(repo: Repository, entry: Entry) -> Contents:
    """Return the content of an output file. Its parts are read when it is opened."""

    @contextmanager
    def opened() -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            for part in entry.parts:
                file.write(repo.objects.read(part))
            file.seek(0)
            yield file

    def head() -> bytes:
        return bytes(repo.objects.read(entry.parts[0]))[: tensor_files.HEAD_BYTES] if entry.parts else b""

    return {entry.digest: Content(digest=entry.digest, size_bytes=entry.size_bytes, head=head, open=opened)}
