"""A dataset as a training reads it: a list of files, each of which `fetch` brings to this machine's disk, verified.

Files of a dataset that stays in its remote come into the node's cache, once for all processes of the node. Files of any
other dataset are in the work directory of the attempt. Imports no torch, and works in worker processes of a loader.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from m5ws.data.remote import RemoteFiles
from m5ws.errors import NotFound, UsageError
from m5ws.records.base import Digest
from m5ws.records.launch import Context
from m5ws.records.sample_ids import covers
from m5ws.records.snapshot import Manifest, Snapshot
from m5ws.repository.repository import Repository
from m5ws.store.traffic import NAME


class PinnedFile(msgspec.Struct, frozen=True):
    """One file. `path` is relative to the dataset; `digest` is None for a file that is on this machine already."""

    path: str
    size_bytes: int
    digest: str | None = None


class PinnedDataset:
    """The files of a dataset, sorted by path. It can be pickled, and used by several threads and processes.

    `folder` is the path in the workspace to which the paths of the files are relative. `digest` is the digest of the
    manifest or of the tree. Outside of `m5ws run` it is a digest of names, sizes and times of the files.
    """

    def __init__(
        self, name: str, folder: str, digest: str, files: Sequence[PinnedFile], place: "Path | RemoteFiles"
    ) -> None:
        self.name = name
        self.folder = folder
        self.digest = digest
        self.files = tuple(files)
        self._place = place

    @property
    def is_remote(self) -> bool:
        """True if the files stay in a remote, and each is verified when it is fetched."""
        return not isinstance(self._place, Path)

    def fetch(self, index: int) -> Path:
        """Return the path of a file whose bytes are verified, after a download if necessary.

        A fetched file stays on the disk until this process has fetched many others. Raises CorruptObject, NotFound and
        the errors of the remote, each with the file, and the expected and the actual content.
        """
        if isinstance(self._place, Path):
            return self._place / self.files[index].path
        return self._place.fetch(self.files[index].path)


def open_dataset(path: str) -> PinnedDataset:
    """Return the dataset at `path` of the workspace, or a folder or file inside a dataset.

    In a run, it is the dataset of the run's snapshot, also by its absolute path in the author's checkout. Outside of
    `m5ws run`, it is the files that exist at `path`.
    Raises NotFound.
    """
    wanted = os.path.normpath(path)
    # Only a rank has loaded this module, which imports torch.
    if "m5ws.training.runtime.context" in sys.modules:
        from m5ws.training.runtime import context

        if (active := context.active()) is not None:
            return open_in_run(active.repo, active.context, _in_workspace(wanted, active.context))
    return _local(wanted, Path(wanted), None)


def _in_workspace(path: str, context: Context) -> str:
    """Return a path relative to the workspace. A path in the author's checkout is the path in the snapshot; a path
    outside is unchanged.
    """
    for root in (context.work_dir, context.author_dir) if os.path.isabs(path) else ():
        for name in (root, os.path.realpath(root)):
            if (inner := _inner(path, name)) is not None:
                return inner or "."
    return path


def open_in_run(repo: Repository, context: Context, path: str) -> PinnedDataset:
    """Return the dataset at `path` of the workspace for a rank with the orders in `context`. Raises NotFound."""
    snapshot = repo.objects.get_record(context.snapshot, Snapshot)
    for remote in snapshot.remote:
        if (inner := _inner(path, remote.name)) is not None:
            manifest = repo.objects.get_record(remote.manifest, Manifest)
            counted = Path(context.spool_dir, NAME)
            files = RemoteFiles(remote, manifest, Path(context.files), context.files_bytes, counted)
            return of_remote(files, path, inner)
    trees = (dataset.tree for dataset in snapshot.datasets if _inner(path, dataset.name) is not None)
    tree = next(trees, None)
    return _local(path, Path(context.work_dir, path), tree if tree is None else _part_digest(tree, path))


def of_remote(remote: RemoteFiles, name: str, inner: str = "") -> PinnedDataset:
    """Return the files of a remote dataset at and below `inner`. Raises NotFound if there are none."""
    files = [file for file in remote.files.values() if not inner or covers(inner, file.path)]
    if not files:
        raise NotFound(f"{name} has no file in the snapshot", hint="`m5ws show` lists the datasets of a snapshot.")
    digest = _part_digest(remote.digest, inner) if inner else remote.digest
    pinned = [PinnedFile(file.path, file.size_bytes, file.digest) for file in files]
    return PinnedDataset(name, remote.remote.folder, digest, pinned, remote)


def _inner(path: str, dataset: str) -> str | None:
    """Return the path relative to a dataset; "" for the dataset itself, None outside of it."""
    return path[len(dataset) + 1 :] if covers(dataset, path) else None


def _part_digest(digest: Digest, inner: str) -> str:
    return hashlib.sha256(f"{digest}:{inner}".encode()).hexdigest()


def _local(name: str, location: Path, digest: str | None) -> PinnedDataset:
    """Return the files on this disk at and below a location."""
    if not location.exists():
        raise NotFound(f"no such dataset: {location}", hint="Give the path of a dataset, relative to the workspace.")
    folder = location if location.is_dir() else location.parent
    statuses = {
        os.path.relpath(path, folder): os.stat(path) for path in (_walk(location) if folder == location else [location])
    }
    if not statuses:
        raise UsageError(f"the dataset {location} has no files", hint="Add files, or give another path.")
    ordered = sorted(statuses.items())
    content = repr([(path, status.st_size, status.st_mtime_ns) for path, status in ordered])
    digest = digest or hashlib.sha256(content.encode()).hexdigest()
    files = [PinnedFile(path, status.st_size) for path, status in ordered]
    inside = os.path.dirname(name) if folder != location else "" if name == "." else name
    return PinnedDataset(name, inside, digest, files, folder.absolute())


def _walk(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder, followlinks=True):
        yield from (os.path.join(parent, name) for name in names)
