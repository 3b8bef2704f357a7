"""DVC: finds the tracked datasets of a workspace, compares them with their pins, and fetches missing data.

Pins are read as YAML, and files are compared with them here, without DVC: DVC accepts a damaged cache file
(https://github.com/iterative/dvc/issues/9641). DVC is imported only to fetch.
"""

import hashlib
import json
import os
import posixpath
import shutil
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from m5ws.errors import CorruptObject, M5Error, MissingExtra, NotFound
from m5ws.repository import concurrency
from m5ws.repository.files.interface import SourceFile
from m5ws.snapshot.sources.interface import TrackedDataset

_FILES = "files/md5"
"""Folder of the files in a remote of DVC 3."""


class UnusablePin(M5Error):
    """A pin lacks the hash or the path of its data, or is not valid."""

    hint = "Complete the pin (`dvc commit` or `dvc update`), or exclude DVC's data: [data] dvc = false in m5ws.toml."


class DatasetModified(M5Error):
    """Files in the working tree differ from the pin."""

    def __init__(self, dataset: TrackedDataset) -> None:
        name, pin = os.fsdecode(dataset.path), os.fsdecode(dataset.pin)
        target = pin if pin.endswith(".dvc") else name
        super().__init__(f"{name} differs from its pin {pin}")
        self.hint = f"`dvc commit {target}` pins the current files; `dvc checkout {target}` restores the pinned files."


class Dvc:
    """Datasets that DVC tracks."""

    def find(self, root: Path, files: Sequence[bytes]) -> tuple[TrackedDataset, ...]:
        """Return every dataset whose pin (`*.dvc`, `dvc.lock`) is in `files`, which are sorted.

        Outputs that git tracks (`cache: false`) are files of the workspace, and no datasets. Raises UnusablePin.
        """
        datasets = list[TrackedDataset]()
        for pin in [path for path in files if path.endswith((b".dvc", b"dvc.lock"))]:
            if pin.endswith(b".dvc") and posixpath.basename(pin) != b".dvc":
                datasets += [
                    _dataset(pin, folder, out) for folder, out in _outs_of_pin(root, pin) if out.get("cache", True)
                ]
            elif posixpath.basename(pin) == b"dvc.lock":
                outs = [_dataset(pin, folder, out) for folder, out in _outs_of_lock(root, pin)]
                datasets += [dataset for dataset in outs if not _holds(files, dataset.path)]
        return tuple(sorted(datasets, key=lambda dataset: dataset.path))

    def verify(self, dataset: TrackedDataset, files: Sequence[SourceFile]) -> None:
        """Raise DatasetModified unless the MD5 of every file, and of their list, matches the pin."""
        digests = list(concurrency.for_each(lambda file: _md5(file.location), files))
        if not dataset.hash.endswith(".dir"):
            same = digests == [dataset.hash] and files[0].path == dataset.path
        else:
            start = len(dataset.path) + 1
            names = [os.fsdecode(file.path[start:]) for file in files]
            same = _md5_of_list(zip(names, digests, strict=True)) == dataset.hash
        if not same:
            raise DatasetModified(dataset)

    def fetch(self, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
        """Write the dataset's files below `target`, from DVC's cache or else its remote, and verify each.

        Adds nothing to DVC's cache, and takes no lock of DVC. Raises NotFound, CorruptObject, MissingExtra.
        """
        try:
            from dvc.exceptions import DvcException
            from dvc.repo import Repo
            from dvc_data.index import DataIndexDirError
        except ImportError as error:
            raise MissingExtra(f"fetching {os.fsdecode(dataset.path)}", "dvc") from error
        import tempfile

        with tempfile.TemporaryDirectory(prefix="m5ws-dvc-site-") as site:
            try:
                with Repo(os.fspath(root), config={"core": {"site_cache_dir": site}}) as repo:
                    return _copy_all(repo, root, dataset, target)
            except (DataIndexDirError, FileNotFoundError) as error:
                raise _absent(dataset) from error
            except DvcException as error:
                raise M5Error(f"DVC cannot fetch {os.fsdecode(dataset.path)}: {error}") from error

    def remote_url(self, root: Path, dataset: TrackedDataset) -> str:
        """Return the place of a dataset's files in its remote: a folder, or an s3:// URL with the server's options.

        Makes no request. Raises M5Error for another kind of remote, MissingExtra.
        """
        name = os.fsdecode(dataset.path)
        try:
            from dvc.exceptions import DvcException
            from dvc.fs import get_fs_config
            from dvc.repo import Repo
        except ImportError as error:
            raise MissingExtra(f"finding the remote of {name}", "dvc") from error
        try:
            with Repo(os.fspath(root)) as repo:
                default = repo.config["core"].get("remote")
                if not (remote := dataset.remote or default):
                    raise NotFound(f"{name} has no remote", hint="`dvc remote add -d NAME URL` adds a default remote.")
                config = get_fs_config(repo.config, name=remote)
        except DvcException as error:
            raise M5Error(f"DVC cannot find the remote of {name}: {error}") from error
        return _place(name, config)


def _place(name: str, config: Mapping[str, Any]) -> str:
    """Return the place of files in a remote with this configuration."""
    url = str(config["url"]).rstrip("/")
    versions = config.get("version_aware") or config.get("worktree")
    if versions or ("://" in url and not url.startswith("s3://")):
        kind = "versions" if versions else url.partition("://")[0]
        raise M5Error(
            f"{name} cannot stay in its remote {url}: m5ws does not read remotes of the kind {kind}",
            hint="A dataset can stay in a folder or in S3, or take it out of [data] stay in m5ws.toml.",
        )
    if not url.startswith("s3://"):
        return os.path.join(os.path.realpath(url), _FILES)
    options = {"endpoint_url": config.get("endpointurl"), "region": config.get("region")}
    query = urlencode({key: value for key, value in options.items() if value}, safe=":/")
    return f"{url}/{_FILES}" + (f"?{query}" if query else "")


# --- pins ------------------------------------------------------------------------------------------


def _outs_of_pin(root: Path, pin: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folder of its path and the entry, for each output of a `.dvc` file."""
    document = _yaml(root, pin)
    folder = posixpath.join(posixpath.dirname(os.fsdecode(pin)), str(document.get("wdir", ".")))
    yield from ((folder, out) for out in document.get("outs") or ())


def _outs_of_lock(root: Path, pin: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield as `_outs_of_pin` for a `dvc.lock`. The `dvc.yaml` beside it has the folders of its stages."""
    document = _yaml(root, pin)
    parent = posixpath.dirname(os.fsdecode(pin))
    stages = document.get("stages", {}) if "schema" in document else document
    pipeline = os.fsencode(posixpath.join(parent, "dvc.yaml"))
    declared = (_yaml(root, pipeline) if os.path.exists(root / os.fsdecode(pipeline)) else {}).get("stages") or {}
    for name, stage in (stages or {}).items():
        declaration = declared.get(name.partition("@")[0]) or {}
        folder = posixpath.join(parent, str((declaration.get("do") or declaration).get("wdir", ".")))
        yield from ((folder, out) for out in stage.get("outs") or ())


def _yaml(root: Path, pin: bytes) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    name = os.fsdecode(pin)
    try:
        document = YAML(typ="safe", pure=True).load((root / name).read_bytes())
    except YAMLError as error:
        raise UnusablePin(f"{name} is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise UnusablePin(f"{name} is not a DVC file")
    return document


def _dataset(pin: bytes, folder: str, out: dict[str, Any]) -> TrackedDataset:
    name, path = os.fsdecode(pin), str(out.get("path", ""))
    inside = posixpath.normpath(posixpath.join(folder, path))
    if not path or "://" in path or posixpath.isabs(inside) or inside.split("/")[0] in ("..", "."):
        raise UnusablePin(f"{name} tracks {path!r}, which is not inside the workspace")
    if "md5" not in out:
        raise UnusablePin(f"{name} has no md5 for {path!r}")
    return TrackedDataset(
        path=os.fsencode(inside),
        pin=pin,
        hash=str(out["md5"]),
        executable=bool(out.get("isexec", False)),
        remote=out.get("remote"),
        size_bytes=out.get("size"),
        is_plain=out.get("hash") == "md5",
    )


def _holds(files: Sequence[bytes], path: bytes) -> bool:
    """Return True if `path`, or a file below it, is in the sorted `files`."""
    at = bisect_left(files, path)
    below = bisect_left(files, path + b"/")
    return (at < len(files) and files[at] == path) or (below < len(files) and files[below].startswith(path + b"/"))


# --- hashes ----------------------------------------------------------------------------------------


def _md5(location: str | Path) -> str:
    with open(location, "rb", buffering=0) as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def _md5_of_list(files: Any) -> str:
    """Return DVC's hash of a folder: the MD5 of the list of files as JSON, sorted by path."""
    rows = sorted(({"md5": digest, "relpath": name} for name, digest in files), key=lambda row: row["relpath"])
    return hashlib.md5(json.dumps(rows, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


# --- fetching --------------------------------------------------------------------------------------


def _copy_all(repo: Any, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
    index = repo.index.data["repo"]
    key = Path(os.path.realpath(root), os.fsdecode(dataset.path)).relative_to(os.path.realpath(repo.root_dir)).parts
    if key not in index:
        raise UnusablePin(f"DVC does not track {os.fsdecode(dataset.path)}, which {os.fsdecode(dataset.pin)} pins")
    entries = [(inner, entry) for inner, entry in index.iteritems(prefix=key) if not (entry.meta and entry.meta.isdir)]
    jobs = [
        (entry, dataset.path + b"".join(b"/" + _component(dataset, part) for part in inner[len(key) :]))
        for inner, entry in entries
    ]
    return tuple(concurrency.for_each(lambda job: _copy(index, dataset, job[0], job[1], target), jobs))


def _component(dataset: TrackedDataset, part: str) -> bytes:
    """Return one part of a path from DVC's list of files. Raises CorruptObject if the part leaves the target."""
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise CorruptObject(f"the list of files of {os.fsdecode(dataset.path)} contains a path with {part!r}")
    return os.fsencode(part)


def _copy(index: Any, dataset: TrackedDataset, entry: Any, path: bytes, target: Path) -> SourceFile:
    """Copy one file from the first storage that has the pinned bytes."""
    location = os.path.join(target, os.fsdecode(path))
    os.makedirs(os.path.dirname(location), exist_ok=True)
    damaged: list[str] = []
    storages = index.storage_map[entry.key]
    for storage in (storages.cache, storages.remote, storages.data):
        if storage is None:
            continue
        try:
            system, source = storage.get(entry)
            with system.open(source, "rb") as file, open(location, "wb") as copy:
                shutil.copyfileobj(file, copy)
            if _md5(location) == entry.hash_info.value:
                return SourceFile(path=path, location=location)
        except (FileNotFoundError, ValueError):
            continue
        damaged.append(str(source))
    if damaged:
        raise CorruptObject(
            f"checksum mismatch: {' and '.join(damaged)} does not match the pin {os.fsdecode(dataset.pin)} of "
            f"{os.fsdecode(path)}",
            hint="Delete the damaged file in DVC's storage, and `dvc fetch` it from a good copy.",
        )
    raise _absent(dataset)


def _absent(dataset: TrackedDataset) -> NotFound:
    name, pin = os.fsdecode(dataset.path), os.fsdecode(dataset.pin)
    return NotFound(
        f"{name}, which {pin} pins, is missing in the working tree, in DVC's cache and in its remote",
        hint=f"`dvc pull {name}` prints details. On a machine that has the data, `dvc push` it to the remote.",
    )
