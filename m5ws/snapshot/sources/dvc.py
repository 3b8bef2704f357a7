"""DVC: which data a workspace tracks, whether it is what the pins say, and the data itself where it is not on disk.

Pins are read as the YAML that they are, and files are checked against them here, without DVC: it takes a damaged
cache file for good (https://github.com/iterative/dvc/issues/9641). DVC itself is loaded to fetch, and only then.
"""

import json
import os
import posixpath
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m5ws.errors import CorruptObject, M5Error, MissingExtra, NotFound
from m5ws.repository.files.interface import SourceFile
from m5ws.snapshot.sources.interface import TrackedDataset

if TYPE_CHECKING:
    import hashlib

_THREADS = 8
_BLOCK_BYTES = 1 << 20
_TEXT = bytes(range(32, 127)) + b"\n\r\t\f\b"


class UnusablePin(M5Error):
    """A pin that does not say which bytes it stands for, or where they belong."""

    hint = "`dvc commit` or `dvc update` completes a pin; [data] dvc = false in m5ws.toml leaves DVC's data out."


class DatasetModified(M5Error):
    """The working tree holds something else than the pin."""

    def __init__(self, dataset: TrackedDataset) -> None:
        name, pin = os.fsdecode(dataset.path), os.fsdecode(dataset.pin)
        target = pin if pin.endswith(".dvc") else name
        super().__init__(f"{name} is not what {pin} pins")
        self.hint = f"`dvc commit {target}` pins it as it is now; `dvc checkout {target}` brings back what is pinned."


class Dvc:
    """`DatasetSource`."""

    def find(self, root: Path, files: Sequence[bytes]) -> tuple[TrackedDataset, ...]:
        """Return every dataset whose pin (`*.dvc`, `dvc.lock`) is among `files`, which are sorted.

        Outputs that are files of the workspace themselves (`cache: false`) are none. Raises UnusablePin.
        """
        found = list[TrackedDataset]()
        for pin in [path for path in files if path.endswith((b".dvc", b"dvc.lock"))]:
            if pin.endswith(b".dvc") and posixpath.basename(pin) != b".dvc":
                found += [
                    _dataset(pin, folder, out) for folder, out in _outs_of_pin(root, pin) if out.get("cache", True)
                ]
            elif posixpath.basename(pin) == b"dvc.lock":
                outs = [_dataset(pin, folder, out) for folder, out in _outs_of_lock(root, pin)]
                found += [dataset for dataset in outs if not _holds(files, dataset.path)]
        return tuple(sorted(found, key=lambda dataset: dataset.path))

    def select(self, root: Path, dataset: TrackedDataset, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """Return those of `files` that no `.dvcignore` names."""
        ignored = _ignored(root, dataset.path)
        return tuple(files) if ignored is None else tuple(file for file in files if not ignored(file.path))

    def verify(self, dataset: TrackedDataset, files: Sequence[SourceFile]) -> None:
        """Raise DatasetModified unless the MD5 of every file, and of their list, is what is pinned."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-md5") as pool:
            digests = list(pool.map(lambda file: _md5(file.location, dataset.legacy), files))
        if not dataset.hash.endswith(".dir"):
            same = digests == [dataset.hash] and files[0].path == dataset.path
        else:
            start = len(dataset.path) + 1
            names = [os.fsdecode(file.path[start:]) for file in files]
            same = _md5_of_list(zip(names, digests, strict=True)) == dataset.hash
        if not same:
            raise DatasetModified(dataset)

    def fetch(self, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
        """Write the dataset's files below `target`, each checked as it arrives; from the cache, else the remote.

        Nothing is added to DVC's cache and no lock of DVC's is taken. Raises NotFound, CorruptObject, MissingExtra.
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


# --- pins ------------------------------------------------------------------------------------------


def _outs_of_pin(root: Path, pin: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (the folder that paths start from, the entry) for each output of a `.dvc` file."""
    document = _yaml(root, pin)
    folder = posixpath.join(posixpath.dirname(os.fsdecode(pin)), str(document.get("wdir", ".")))
    yield from ((folder, out) for out in document.get("outs") or ())


def _outs_of_lock(root: Path, pin: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield as `_outs_of_pin` for a `dvc.lock`; where its stages run stands in the `dvc.yaml` beside it."""
    document = _yaml(root, pin)
    here = posixpath.dirname(os.fsdecode(pin))
    stages = document.get("stages", {}) if "schema" in document else document
    pipeline = os.fsencode(posixpath.join(here, "dvc.yaml"))
    declared = (_yaml(root, pipeline) if os.path.exists(root / os.fsdecode(pipeline)) else {}).get("stages") or {}
    for name, stage in (stages or {}).items():
        said = declared.get(name.partition("@")[0]) or {}
        folder = posixpath.join(here, str((said.get("do") or said).get("wdir", ".")))
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
        raise UnusablePin(f"{name} does not say what {path!r} holds: it has no md5")
    return TrackedDataset(
        path=os.fsencode(inside),
        pin=pin,
        kind="dvc",
        hash=str(out["md5"]),
        size_bytes=out.get("size"),
        executable=bool(out.get("isexec", False)),
        legacy="hash" not in out,
    )


def _holds(files: Sequence[bytes], path: bytes) -> bool:
    """Return whether `path`, or something below it, is among the sorted `files`."""
    at = bisect_left(files, path)
    below = bisect_left(files, path + b"/")
    return (at < len(files) and files[at] == path) or (below < len(files) and files[below].startswith(path + b"/"))


def _ignored(root: Path, path: bytes) -> Callable[[bytes], bool] | None:
    """Return what `.dvcignore` files from DVC's root down to `path` ignore; None if they say nothing."""
    place = root / os.fsdecode(path)
    top = next((folder for folder in (root, *root.parents) if (folder / ".dvc").is_dir()), root)
    specs: list[tuple[str, Any]] = []
    for folder in (
        top,
        *(parent for parent in reversed(place.parents) if parent.is_relative_to(top) and parent != top),
    ):
        lines = _patterns(folder / ".dvcignore")
        if lines:
            import pathspec

            specs.append((os.path.relpath(root, folder), pathspec.GitIgnoreSpec.from_lines(lines)))
    if not specs:
        return None

    def ignored(file: bytes) -> bool:
        return any(spec.match_file(posixpath.normpath(f"{up}/{os.fsdecode(file)}")) for up, spec in specs)

    return ignored


def _patterns(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


# --- hashes ----------------------------------------------------------------------------------------


def _md5(location: str | Path, legacy: bool) -> str:
    digest = _Md5(legacy)
    with open(location, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


class _Md5:
    """DVC's MD5. Pins of DVC before 3.0 hash text with its line ends as on Unix, judged block by block."""

    def __init__(self, legacy: bool) -> None:
        self._digest = _hasher()
        self._legacy = legacy

    def update(self, block: bytes) -> None:
        """Take the next block; blocks of a legacy hash are 1 MiB, as DVC reads them."""
        self._digest.update(block.replace(b"\r\n", b"\n") if self._legacy and _is_text(block[:512]) else block)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _is_text(block: bytes) -> bool:
    return b"\0" not in block and len(block.translate(None, _TEXT)) <= 0.30 * len(block)


def _md5_of_list(files: Any) -> str:
    """Return DVC's hash of a folder: the MD5 of its list of files, as JSON sorted by path."""
    rows = sorted(({"md5": digest, "relpath": name} for name, digest in files), key=lambda row: row["relpath"])
    digest = _hasher()
    digest.update(json.dumps(rows, sort_keys=True).encode())
    return digest.hexdigest() + ".dir"


def _hasher() -> "hashlib._Hash":
    """Return MD5 as DVC uses it; OpenSSL is loaded where there is something to check."""
    import hashlib

    return hashlib.md5(usedforsecurity=False)


# --- fetching --------------------------------------------------------------------------------------


def _copy_all(repo: Any, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
    index = repo.index.data["repo"]
    key = Path(os.path.realpath(root), os.fsdecode(dataset.path)).relative_to(os.path.realpath(repo.root_dir)).parts
    if key not in index:
        raise UnusablePin(f"DVC does not know {os.fsdecode(dataset.path)}, which {os.fsdecode(dataset.pin)} pins")
    entries = [(found, entry) for found, entry in index.iteritems(prefix=key) if not (entry.meta and entry.meta.isdir)]
    jobs = [
        (entry, dataset.path + b"".join(b"/" + _component(dataset, part) for part in found[len(key) :]))
        for found, entry in entries
    ]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-dvc") as pool:
        return tuple(pool.map(lambda job: _copy(index, dataset, job[0], job[1], target), jobs))


def _component(dataset: TrackedDataset, part: str) -> bytes:
    """Return one part of a path that a list in cache or remote names; it must not lead out of the target."""
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise CorruptObject(f"the list of files of {os.fsdecode(dataset.path)} holds a path with {part!r}")
    return os.fsencode(part)


def _copy(index: Any, dataset: TrackedDataset, entry: Any, path: bytes, target: Path) -> SourceFile:
    """Copy one file from the first place that has the right bytes."""
    location = os.path.join(target, os.fsdecode(path))
    os.makedirs(os.path.dirname(location), exist_ok=True)
    wrong: list[str] = []
    places = index.storage_map[entry.key]
    for storage in (places.cache, places.remote, places.data):
        if storage is None:
            continue
        try:
            system, where = storage.get(entry)
            if _copy_checked(system, where, location, entry.hash_info.value, dataset.legacy):
                return SourceFile(path=path, location=location)
        except (FileNotFoundError, ValueError):
            continue
        wrong.append(str(where))
    if wrong:
        raise CorruptObject(
            f"{' and '.join(wrong)} is not what {os.fsdecode(dataset.pin)} pins as {os.fsdecode(path)}",
            hint="Delete that damaged file of DVC's, and `dvc fetch` it from a good copy.",
        )
    raise _absent(dataset)


def _copy_checked(system: Any, where: str, location: str, md5: str, legacy: bool) -> bool:
    digest = _Md5(legacy)
    with system.open(where, "rb") as source, open(location, "wb") as copy:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            copy.write(block)
    return digest.hexdigest() == md5


def _absent(dataset: TrackedDataset) -> NotFound:
    name, pin = os.fsdecode(dataset.path), os.fsdecode(dataset.pin)
    return NotFound(
        f"{name}, which {pin} pins, is neither in the working tree nor in DVC's cache nor in its remote",
        hint=f"`dvc pull {name}` says more; where the data is, `dvc push` it to the remote.",
    )
