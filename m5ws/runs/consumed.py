"""The steps in which a run consumed a sample, a file or a dataset, and the checkpoints that such steps lead to.

The steps that lead to the run's weights count: after a resume the newest record of each step, and in a
fork the steps of its parent up to the fork. Steps are read one after another, and consecutive steps are joined.

Invariant: a run whose steps do not record all samples is never reported as a run without the sample.
"""

import shlex
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from posixpath import join, normpath
from typing import TYPE_CHECKING

import msgspec

from m5ws.errors import M5Error, NotFound, UsageError
from m5ws.records import sample_ids
from m5ws.records.base import Record
from m5ws.records.ledger import Step
from m5ws.records.run import Run
from m5ws.repository import removals
from m5ws.repository.references import checkpoints, lineage, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.runs import history
from m5ws.runs.history import History
from m5ws.runs.numbers import union

if TYPE_CHECKING:
    from m5ws.data.order import SourceOrder

OF_BATCH = "batch"
_END = 2**63 - 1


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A sample (PATH#ROW, or an id in a script's own batches), a path of a file, folder or dataset, or a digest."""

    sample: str | None = None
    file: str | None = None
    match: str | None = None

    @property
    def path(self) -> str | None:
        """The path whose samples are wanted."""
        path, _, row = (self.sample or "").rpartition("#")
        return self.file if self.sample is None else normpath(path) if row.isdecimal() and path else None

    @property
    def row(self) -> int | None:
        """The row of the sample in its file."""
        return int(self.sample.rpartition("#")[2]) if self.sample is not None and self.path is not None else None


class Steps(Record, frozen=True, kw_only=True):
    """Consecutive steps of a run, `first` to `last`, that consumed `samples` samples of an epoch of a source.

    `epoch` is None for ids of a script's own batches, and for a batch digest.
    """

    run: str
    source: str
    epoch: int | None
    first: int
    last: int
    samples: int


class Consumption(Record, frozen=True, kw_only=True):
    """The steps of a run that consumed samples of a query. `unknown` describes steps whose samples are not recorded."""

    run: str
    steps: tuple[Steps, ...] = ()
    unknown: tuple[str, ...] = ()
    seen_by: tuple[str, ...] = ()
    """Valid checkpoints of the run that such a step leads to."""
    before: str | None = None
    """The last checkpoint, as RUN@STEP, that no such step leads to."""
    exists: bool = True
    """False if no file, row or content of the run and its ancestors matches the query."""


def find(repo: Repository, run_id: str, query: Query) -> Consumption:
    """Return the steps of a run and its ancestors that consumed the samples of a query. Raises NotFound, CorruptObject,
    UsageError.
    """
    record = runs.load(repo, run_id)
    found, unknown, exists = list[Steps](), list[str](), False
    parts = [*_lineage(repo, record, unknown)]
    for run, begin, end in parts:
        try:
            removals.refuse(repo, run.id)
            searched = _Search(repo, run, query)
        except M5Error as error:
            if run.id == run_id:
                raise
            unknown.append(f"steps {begin + 1}-{end} of run {run.id}: {error}")
            continue
        _join(found, searched.steps(begin, end))
        unknown += searched.unknown
        exists = exists or searched.exists
    first = min((each.first for each in found), default=None)
    own = checkpoints.valid(repo, run_id)
    return Consumption(
        run=run_id,
        steps=tuple(found),
        unknown=tuple(unknown),
        seen_by=tuple(name for name in own if first is not None and checkpoints.step_of(name) >= first),
        before=_before(repo, parts, first) if first is not None and not unknown else None,
        exists=exists or bool(found),
    )


def everywhere(repo: Repository, query: Query) -> Iterator[Consumption]:
    """Yield as `find` for each run of the store; a run that was removed, or that cannot be read, is unknown."""
    for run_id in runs.ids(repo):
        try:
            yield find(repo, run_id, query)
        except M5Error as error:
            yield Consumption(run=run_id, unknown=(str(error),), exists=False)


def _lineage(repo: Repository, record: Run, unknown: list[str]) -> Iterator[tuple[Run, int, int]]:
    """Yield the runs of a lineage from the first on, each with the steps of it that count: after, and up to."""
    parents, is_whole = lineage.chain(repo, record)
    ends = [_END, *(parent.step for parent in parents)]
    ids = [record.id, *(parent.run for parent in parents)]
    if not is_whole:
        unknown.append(f"steps 1-{ends.pop()} of run {ids.pop()}, which is not to be had here")
    for run_id, end in zip(reversed(ids), reversed(ends), strict=True):
        run = record if run_id == record.id else runs.load(repo, run_id)
        yield run, run.begin, end


def _before(repo: Repository, parts: list[tuple[Run, int, int]], first: int) -> str | None:
    """Return the last checkpoint of the nearest run of a lineage that is before a step."""
    for run, _, end in reversed(parts):
        names = [name for name in checkpoints.valid(repo, run.id) if checkpoints.step_of(name) <= min(end, first - 1)]
        if names:
            return f"{run.id}@{checkpoints.step_of(names[-1])}"
    return None


def _join(into: list[Steps], steps: Iterator[Steps]) -> None:
    """Add steps, joined with the steps before them of the same run, source and epoch."""
    last: dict[tuple[str, str, int | None], int] = {}
    for each in steps:
        key = (each.run, each.source, each.epoch)
        place = last.get(key)
        if place is not None and into[place].last + 1 == each.first:
            known = into[place]
            into[place] = msgspec.structs.replace(known, last=each.last, samples=known.samples + each.samples)
        else:
            last[key] = len(into)
            into.append(each)


class _Search:
    """The search for a query in the steps of one run."""

    def __init__(self, repo: Repository, run: Run, query: Query) -> None:
        self._repo, self._run, self._query = repo, run, query
        self._history = self._load()
        path = query.path
        names = _paths_of(repo, run, query.match) if path is None else snapshots.names_of(repo, run.snapshot, path)
        self._is_pinned = bool(names)
        self._paths = {path, *names} if path is not None else {*names}
        self._sources: dict[int, dict[str, _Places]] = {}
        self.unknown: list[str] = []

    def _load(self) -> History:
        # Rank 0 has the samples of all ranks, but not the ids in other ranks' own batches, and their digests.
        loaded = history.load(self._repo, self._run.id, ranks=("0",))
        is_enough = loaded.orders and self._query.match is None
        return loaded if is_enough else history.load(self._repo, self._run.id)

    @property
    def exists(self) -> bool:
        """True if the run has a file, and a row of the file, that the query names, or if it has ids of its own."""
        if self._history.orders and self._query.sample is not None:
            return any(place.exists for attempt in self._history.orders for place in self._places(attempt).values())
        read = (place for attempt in self._history.orders for place in self._places(attempt).values())
        return self._is_pinned or self._query.sample is not None or any(place.exists for place in read)

    def steps(self, begin: int, end: int) -> Iterator[Steps]:
        """Yield the steps after `begin` up to `end` that consumed a sample of the query, in order."""
        first = last = 0
        numbers = [number for number in union(self._history.steps.values()) if begin < number <= end]
        for number in numbers:
            ranked = [step for steps in self._history.steps.values() if (step := steps.get(number)) is not None]
            for step in ranked:
                yield from self._of_step(step)
            if not self._is_known(ranked) and (self._query.match is None or self._is_pinned):
                first, last = first or number, number
        for dataset in sorted(filter(self._concerns, self._history.unrecorded)):
            self.unknown.append(f"run {self._run.id} reads {dataset} by another loader, which records no samples")
        saved = map(checkpoints.step_of, checkpoints.valid(self._repo, self._run.id))
        reached = end if end < _END else max([self._history.last_step, begin, *saved])
        if missing := reached - begin - len(numbers):
            self.unknown.append(f"{missing:,} of steps {begin + 1}-{reached} of run {self._run.id} have no record")
        read = [place for attempt in self._history.orders for place in self._places(attempt).values()]
        if self._is_pinned and not any(place.exists for place in read):
            names = sorted({place.lacking for place in read if place.lacking is not None})
            self.unknown += [f"{self._query.path} has no samples, but may belong to a file of {name}" for name in names]
        if first:
            self.unknown.append(f"steps {first}-{last} of run {self._run.id} do not record their samples")
        elif self._history.last_step == 0 and self._run.begin == begin and self._history.attempt:
            self.unknown.append(f"run {self._run.id} has no recorded step")

    def _concerns(self, dataset: str) -> bool:
        """Return True if a dataset may have samples of the query."""
        covers = sample_ids.covers
        return not self._paths or any(covers(path, dataset) or covers(dataset, path) for path in self._paths)

    def _is_known(self, ranked: list[Step]) -> bool:
        """Return True if a step's samples are recorded so that the query can be compared with them."""
        if any(step.samples and step.samples.keys() <= self._places_at(step.step).keys() for step in ranked):
            return True
        # Ids of a script's own batches are the ids that a person gives, and name no file.
        return self._query.sample is not None and all(step.samples for step in ranked)

    def _of_step(self, step: Step) -> Iterator[Steps]:
        if self._query.match is not None and step.batch == self._query.match:
            yield self._found(step, OF_BATCH, None, 1)
        places = self._places_at(step.step)
        for name, text in step.samples.items():
            if (place := places.get(name)) is not None:
                for epoch, count in place.count(text).items():
                    yield self._found(step, name, epoch, count)
            elif self._query.sample is not None and sample_ids.contains(text, self._query.sample):
                yield self._found(step, name, None, 1)

    def _found(self, step: Step, source: str, epoch: int | None, count: int) -> Steps:
        return Steps(run=self._run.id, source=source, epoch=epoch, first=step.step, last=step.step, samples=count)

    def _places_at(self, step: int) -> "dict[str, _Places]":
        return self._places(self._history.attempt_of(step) or 0)

    def _places(self, attempt: int) -> "dict[str, _Places]":
        if attempt not in self._sources:
            from m5ws.data.order import sources_of

            order = self._history.orders.get(attempt)
            sources = sources_of(order.description, order.indexes.__getitem__) if order is not None else {}
            self._sources[attempt] = {
                name: _Places(source, self._paths, self._query) for name, source in sources.items()
            }
        return self._sources[attempt]


class _Places:
    """The positions of the wanted samples in the order of one source, by epoch."""

    def __init__(self, source: "SourceOrder", paths: set[str], query: Query) -> None:
        files, folder, row = source.index.files, query.path, query.row
        self._source, self._row = source, row
        self._files = [
            file
            for file in files
            if (name := join(source.folder, file)) in paths or (folder and sample_ids.covers(folder, name))
        ]
        is_inside = folder is not None and sample_ids.covers(source.dataset, folder)
        self.lacking = source.dataset if is_inside and not self._files else None
        """The dataset, if the path in it has no samples."""
        self.exists = any(row is None or row < source.index.counts[files.index(file)] for file in self._files)
        self._epochs: dict[int, tuple[list[int], list[int]]] = {}

    def count(self, ranges: str) -> dict[int, int]:
        """Return the number of wanted samples in ranges of positions, by epoch, without zeros."""
        counts: dict[int, int] = {}
        for epoch, start, stop in sample_ids.parse_ranges(ranges) if self._files else ():
            starts, stops = self._positions(epoch)
            at = max(bisect_right(starts, start) - 1, 0)
            while at < len(starts) and starts[at] < stop:
                if (common := min(stop, stops[at]) - max(start, starts[at])) > 0:
                    counts[epoch] = counts.get(epoch, 0) + common
                at += 1
        return counts

    def _positions(self, epoch: int) -> tuple[list[int], list[int]]:
        if epoch not in self._epochs:
            ranges = sorted(each for file in self._files for each in self._source.positions_of(epoch, file, self._row))
            while len(self._epochs) > 1:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[epoch] = [start for _, start, _ in ranges], [stop for _, _, stop in ranges]
        return self._epochs[epoch]


def _paths_of(repo: Repository, run: Run, digest: str | None) -> set[str]:
    """Return the paths of the files of a run's datasets with a digest, as `md5:…`, `sha256:…` or its hex alone."""
    if digest is None:
        return set()
    files = snapshots.list_files(repo, snapshots.load(repo, run.snapshot))
    return {path for path, _, known in files if digest in (known, known.rpartition(":")[2])}


def query(sample: str | None, file: str | None, match: str | None) -> Query:
    """Return the query of the options of a command. Raises UsageError unless one is given."""
    if sum(each is not None for each in (sample, file, match)) != 1:
        raise UsageError(
            "one of --sample, --file and --match is needed",
            hint="For example: m5ws consumed RUN --file data/web/part-7.jsonl",
        )
    return Query(sample=sample, file=normpath(file) if file is not None else None, match=match)


def refuse_unknown(every: Sequence[Consumption], query: Query) -> None:
    """Raise NotFound if no run has the file, the row or the content that a query names."""
    if not any(found.exists for found in every):
        wanted = next(each for each in (query.sample, query.file, query.match) if each is not None)
        raise NotFound(
            f"no run that was searched has {wanted} among its inputs",
            hint="Paths are relative to the workspace, rows begin at 0, and `m5ws show RUN` lists the snapshot. "
            "Files that stay in DVC have MD5 digests, in S3 SHA-256 digests, and in the store digests of BLAKE3.",
        )


def command(found: Consumption, path: str) -> str | None:
    """Return the command that forks a run before it consumed the samples of a path; None without a checkpoint."""
    return shlex.join(("m5ws", "fork", found.before, "--without", path)) if found.before is not None else None
