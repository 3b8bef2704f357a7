"""Partition of the workspace's files into the parts of a snapshot. No content is read here.

Every path is in exactly one part: tokenizer before data before config before code. So the trees are disjoint, and
materialised together they are the workspace.
"""

import os
import posixpath
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from m5ws.config.settings import ConfigSettings, Settings
from m5ws.errors import ConfigError, NotFound
from m5ws.records.snapshot import Dataset, RemoteDataset
from m5ws.repository.files.interface import SourceFile
from m5ws.snapshot import patterns
from m5ws.snapshot.sources.interface import SourceState, TrackedDataset

_INTERNAL = (b".dvc/cache/", b".dvc/tmp/", b".dvc/config.local")


class PinnedPath(msgspec.Struct, frozen=True, kw_only=True):
    """Files under `path` that are pinned by content, and the dataset if another tool tracks them.

    `stored` is the dataset if the store has it completely, with the number of its files: `files` are empty then.
    `verified` are all files of a tracked dataset; `files` may lack the files of the tokenizer. `remote` is a dataset
    that stays in its remote: files on this machine do not count.
    """

    path: bytes
    files: tuple[SourceFile, ...]
    tracked: TrackedDataset | None = None
    stored: tuple[Dataset, int] | None = None
    verified: tuple[SourceFile, ...] = ()
    remote: RemoteDataset | None = None

    def holds(self, path: bytes) -> bool:
        return path == self.path or path.startswith(self.path + b"/")


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """Every captured file, by part. `datasets` have the files that no other part has."""

    code: tuple[SourceFile, ...]
    config: tuple[SourceFile, ...]
    tokenizer: tuple[SourceFile, ...] | None
    datasets: tuple[PinnedPath, ...]
    dirty: bool


def data_paths(settings: Settings, tracked: Iterable[TrackedDataset]) -> tuple[bytes, ...]:
    """Return [data] paths that no tracked dataset covers. Raises ConfigError if a path is inside another path."""
    paths = tuple(sorted({tree_path(path) for path in settings.data.paths}))
    for path in paths:
        outer = next((other for other in paths if path.startswith(other + b"/")), None)
        if outer is not None:
            raise ConfigError(
                f"[data] paths: {os.fsdecode(path)!r} is inside {os.fsdecode(outer)!r}. Name one of the two paths."
            )
    covers = [dataset.path for dataset in tracked]
    return tuple(path for path in paths if not any(path == cover or path.startswith(cover + b"/") for cover in covers))


def tree_path(path: str) -> bytes:
    """Return a path of m5ws.toml in the form of tree paths."""
    return os.fsencode(posixpath.normpath(path))


def partition_files(
    root: Path, settings: Settings, state: SourceState, tokenizer: PinnedPath | None, claims: Sequence[PinnedPath]
) -> Partition:
    """Return every captured file, by part. `claims` are datasets; tracked datasets come before [data] paths.

    Untracked files in [run] outputs are left out: a plain run of the script wrote them.
    Raises NotFound if m5ws.toml names a config file or a tokenizer that does not exist.
    """
    paths = tuple(claim.path for claim in claims) + ((tokenizer.path,) if tokenizer else ())
    config = _config_files(root, settings.config, state.files, paths)
    private = (*_INTERNAL, *_store_folder(root, settings))
    left_out = set(filter(patterns.naming(settings.run.outputs), state.untracked))
    if settings.code.exclude:
        left_out |= set(filter(patterns.ignoring(settings.code.exclude), {*state.files, *state.changed}))
    taken = {*paths, *(file.path for file in config), *left_out}
    elsewhere = (*private, *(path + b"/" for path in paths))
    own = [path for path in state.files if path not in taken and not path.startswith(elsewhere)]
    changed = [path for path in state.changed if path not in left_out and not path.startswith(private)]
    ordered = sorted(claims, key=lambda claim: (claim.tracked is None and claim.remote is None, claim.path))
    folder = os.path.join(root, "")
    return Partition(
        code=tuple(SourceFile(path=path, location=folder + os.fsdecode(path)) for path in own),
        config=config,
        tokenizer=_tokenizer_files(tokenizer, ordered),
        datasets=tuple(_datasets(tokenizer, ordered)),
        dirty=bool(changed),
    )


def _tokenizer_files(tokenizer: PinnedPath | None, pinned: Sequence[PinnedPath]) -> tuple[SourceFile, ...] | None:
    """Return the tokenizer's files, also files in datasets. Raises NotFound if there is none."""
    if tokenizer is None:
        return None
    files = {file.path: file for claim in pinned for file in claim.files if tokenizer.holds(file.path)}
    files |= {file.path: file for file in tokenizer.files if file.path not in files}
    if not files:
        raise NotFound(
            f"[tokenizer] path: {os.fsdecode(tokenizer.path)!r} has no file",
            hint="Add the tokenizer, or correct m5ws.toml.",
        )
    return tuple(files[path] for path in sorted(files))


def _datasets(tokenizer: PinnedPath | None, pinned: Sequence[PinnedPath]) -> Iterable[PinnedPath]:
    """Yield each dataset with the files that no earlier part has. A dataset that loses all of its files is omitted."""
    before: list[PinnedPath] = [tokenizer] if tokenizer is not None else []
    for claim in pinned:
        left = tuple(file for file in claim.files if not any(part.holds(file.path) for part in before))
        if left or not claim.files:
            yield msgspec.structs.replace(claim, files=left)
        before.append(claim)


def _config_files(
    root: Path, settings: ConfigSettings, files: Sequence[bytes], elsewhere: Sequence[bytes]
) -> tuple[SourceFile, ...]:
    """Return config files, with links resolved, but none at or below `elsewhere`.

    A name without special characters counts even if git ignores the file. Raises NotFound if no file has a name or
    pattern of m5ws.toml.
    """
    under = _under(elsewhere)
    configs: dict[bytes, SourceFile] = {}
    for pattern in settings.files:
        if patterns.is_glob(pattern):
            matches = patterns.naming([pattern])
            paths = [path for path in files if matches(path)]
        else:
            path = tree_path(pattern)
            paths = [path] if os.path.isfile(os.path.join(root, os.fsdecode(path))) else []
        if not paths and settings != ConfigSettings():
            raise NotFound(f"[config] files: no file matches {pattern!r}", hint="Correct m5ws.toml, or add the file.")
        for path in paths:
            location = os.path.realpath(os.path.join(root, os.fsdecode(path)))
            if not under(path) and os.path.isfile(location):
                configs[path] = SourceFile(path=path, location=location)
    return tuple(configs[path] for path in sorted(configs))


def _store_folder(root: Path, settings: Settings) -> tuple[bytes, ...]:
    """Return the store's folder if it is in the workspace: a store does not contain itself."""
    store = settings.store.url
    inside = "" if "://" in store else os.path.relpath(os.path.join(root, store), root)
    return () if not inside or inside == "." or inside.startswith("..") else (os.fsencode(inside) + b"/",)


def _under(roots: Sequence[bytes]) -> Callable[[bytes], bool]:
    exact = frozenset(roots)
    folders = tuple(root + b"/" for root in roots)
    return lambda path: path in exact or path.startswith(folders)
