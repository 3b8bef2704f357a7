"""What a snapshot that found nothing new rests on, noted so that its answer can be given again (`m5ws.again`).

What was asked of the store, of git and of datasets is told by those that were asked; what settings name in the
workspace is listed here, with the folders on the way there. A note is sure if the command that answers found all of it
as it was before, by the list of the note before, and nothing changed so lately that a change after it could be unseen.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from m5ws import again, place, search
from m5ws.operations import parts, patterns
from m5ws.operations.ahead import Ahead
from m5ws.operations.snapshot import Captured
from m5ws.ports import DatasetSource, Glance, SourceFile, TrackedDataset
from m5ws.repository.index import settled
from m5ws.settings import Settings

_PACKAGE = "m5ws"


Watching = Callable[[], Sequence[Sequence[again.Witness]]]
"""Tells what a store was asked, in each way in which it can be asked again."""


class Datasets:
    """`ports.DatasetSource` that notes the paths of datasets that are looked for; `fetched` says that one was."""

    def __init__(self, source: DatasetSource) -> None:
        self._source = source
        self.paths: set[bytes] = set()
        self.fetched = False

    def find(self, root: Path, files: Sequence[bytes]) -> tuple[TrackedDataset, ...]:
        return self._source.find(root, files)

    def select(self, root: Path, dataset: TrackedDataset, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        self.paths.add(dataset.path)
        return self._source.select(root, dataset, files)

    def verify(self, dataset: TrackedDataset, files: Sequence[SourceFile]) -> None:
        self._source.verify(dataset, files)

    def fetch(self, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
        self.fetched = True
        return self._source.fetch(root, dataset, target)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command that began at `began_ns` (wall clock), when `before` was to be seen of the note that was there.

    `home` is the workspace's `.m5ws`; `out` and `err` are what was printed.
    """

    home: Path
    arguments: Sequence[str]
    began_ns: int
    before: dict[again.Witness, bytes]
    out: str
    err: str


def note(
    command: Command,
    settings: Settings,
    taken: Captured,
    source: Ahead,
    datasets: Datasets | None,
    store: Iterable[Sequence[again.Witness]],
) -> None:
    """Note the answer of a command, if it can be told when it is another.

    `store` is what was asked of the store, in each way in which that can be asked again; the first that works is taken.
    """
    known = len(source.answers) == 1 and not source.looked
    glance = source.answers[0] if known else None
    if glance is None or not taken.unchanged or not taken.annotated:
        return
    if taken.files > again.MOST_FILES:
        return
    if (datasets is not None and datasets.fetched) or not (command.out + command.err).isascii():
        return
    pinned = parts.roots(settings, ()) + tuple(datasets.paths if datasets is not None else ())
    own = [*_own(), *_workspace(command.home.parent, settings, pinned)]
    # As it was asked the last time, where the same is to be asked: another way may have failed then.
    for asked in sorted(store, key=lambda asked: not command.before.keys() >= {*asked}):
        with suppress(OSError, search.Unclear):
            _keep(command, glance, [*own, *asked])
            return


def _keep(command: Command, glance: Glance, witnesses: Sequence[again.Witness]) -> None:
    """Note an answer that rests on these. Raises OSError, and search.Unclear."""
    seen, changes_ns = again.look(witnesses)
    sure = all(settled((0, changed_ns, changed_ns, 0), command.began_ns) for changed_ns in changes_ns)
    sure = sure and all(command.before.get(witness) == text for witness, text in seen.items())
    home, out, err = os.fspath(command.home), command.out.encode(), command.err.encode()
    again.keep(home, command.arguments, glance.said, out, err, seen, sure=sure)


def _workspace(root: Path, settings: Settings, pinned: Iterable[bytes]) -> Iterator[again.Witness]:
    """Yield what settings name, and what has a say in what counts of a dataset (`adapters/dvc.py`)."""
    paths = {os.fsdecode(path) for path in pinned}
    own = [name for name in settings.config.files if not patterns.is_glob(name)]
    names = {place.FILE, *settings.environment.locks, *(os.fsdecode(parts.tree_path(name)) for name in own)}
    folders = {folder for name in names | paths for folder in (root / name).parents if folder.is_relative_to(root)}
    yield from ((again.FILE, os.path.join(root, name)) for name in sorted(names))
    yield from ((again.BELOW, os.path.join(root, path)) for path in sorted(paths))
    yield from ((again.FOLDER, os.fspath(folder)) for folder in sorted(folders))
    if paths and settings.data.dvc:
        for folder in sorted({*folders, *root.parents}):
            yield again.FILE, os.path.join(folder, ".dvcignore")
            yield again.FOLDER, os.path.join(folder, ".dvc")


def _own() -> Iterator[again.Witness]:
    """Yield the files of m5ws itself: another m5ws may answer otherwise."""
    for name, module in sorted(sys.modules.items()):
        if (name == _PACKAGE or name.startswith(f"{_PACKAGE}.")) and (file := getattr(module, "__file__", None)):
            yield again.FILE, file
