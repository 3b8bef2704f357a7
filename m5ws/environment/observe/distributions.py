"""Installed Python distributions: their versions, and the origins of distributions that do not come from an index.

m5ws is not part of a run's code, so its origin does not count. Its version and a digest of its code in ranks are
separate facts (own_package.py).
"""

import csv
import hashlib
import inspect
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name

from m5ws import secret_scan
from m5ws.environment.observe import conda, own_package
from m5ws.records.environment import Origin

_FIELD = re.compile(r"^(name|version):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_PARTS = re.compile(r'^"?[^/,\n".][^/,\n"]*+(?:/[^/,\n"]++)?', re.MULTILINE)
_BESIDE = re.compile(r'^"?(?:\.\./){3}([^,\n"]*\.so[^,\n"]*)', re.MULTILINE)
_NO_CODE = (".dist-info", ".data", "__pycache__")
_Content = TypeVar("_Content")
_SSH_USER = re.compile(r"ssh://[\w.-]+@[^@/]+/")


def installed() -> dict[str, str]:
    """Return the version of each distribution that this interpreter imports, by normalised name (PEP 503)."""
    return {name: version for name, (version, _) in sorted(_first().items())}


def origins(*roots: Path) -> dict[str, Origin]:
    """Return the origins of distributions that do not come from an index by name, without m5ws.

    A source inside one of `roots` (a workspace, or a copy of one) is named by its path there.
    """
    lines, known = conda.lines(), sorted(_first().items())
    found = {name: _origin(installed, lines) for name, (_, installed) in known if name != own_package.NAME}
    return {name: _placed(origin, roots) for name, origin in found.items() if origin is not None}


def provides() -> dict[str, tuple[str, ...]]:
    """Return the modules and folders of each distribution that lists its files, in the form of `Observed.provides`.

    An editable install lists none. https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    listed = {name: _listed(distribution) for name, (_, distribution) in sorted(_first().items())}
    every = {place for places in listed.values() for place in places}
    owners = Counter(top for places in listed.values() for top in {place.partition("/")[0] for place in places})
    # In a folder that distributions share, each has its own parts, unless the folder is a module itself.
    whole = {top for top, count in owners.items() if top and (count == 1 or f"{top}/__init__" in every)}

    def named(place: str) -> str:
        return top if (top := place.partition("/")[0]) in whole else place

    return {name: tuple(sorted(set(map(named, places)))) for name, places in listed.items() if places}


def _listed(distribution: metadata.Distribution) -> frozenset[str]:
    """Return the places of a distribution's files, at most two parts of each path; empty without a list."""
    return _of_file(_places, distribution, "RECORD") or frozenset()


def _of_file(read: Callable[[Path, int], _Content], distribution: metadata.Distribution, name: str) -> _Content | None:
    """Return `read(file, time of its last change)` of a metadata file, None without the file. `read` has a cache."""
    folder = getattr(distribution, "_path", None)
    try:
        return read(folder / name, (folder / name).stat().st_mtime_ns) if isinstance(folder, Path) else None
    except OSError:
        return None


@cache
def _places(record: Path, _changed_ns: int) -> frozenset[str]:
    """Return the places in a list of files."""
    text = record.read_text(encoding="utf-8", errors="replace")
    parts = (path.lstrip('"').partition("/") for path in set(_PARTS.findall(text)))
    modules = (_module(top, below) for top, _, below in parts if not top.endswith(_NO_CODE))
    # Files beside the folders of modules, as in MKL's wheel, are named by their path in the environment.
    beside = _BESIDE.findall(text) if "../../../" in text else ()
    return frozenset({*filter(None, modules), *(f"/{path}" for path in beside)})


def _module(top: str, below: str) -> str | None:
    """Return the place of a file: the name of a module, the first two parts of a path in a folder."""
    if not below:
        return inspect.getmodulename(top)
    return f"{top}/{inspect.getmodulename(below) or below}"


def owner(file: Path, pattern: str) -> str | None:
    """Return the distribution that installed a file, None without one. Only names that match `pattern` are searched."""
    known = _first()
    return next((name for name in sorted(known) if fnmatchcase(name, pattern) and _owns(known[name][1], file)), None)


def _owns(distribution: metadata.Distribution, file: Path) -> bool:
    """Return True if a distribution lists a file, or if the file is below the source of its editable install.

    A distribution without a list, as in Debian's packages, owns each file beside its metadata.
    """
    origin = _origin(distribution, {})
    if origin is not None and origin.kind == "editable" and _inside(file, Path(unquote(urlsplit(origin.url).path))):
        return True
    folder = Path(str(distribution.locate_file("")))
    if (record := distribution.read_text("RECORD")) is None:
        return _inside(file, folder)
    listed = (folder / row[0] for row in csv.reader(line for line in record.splitlines() if file.name in line))
    # Some installers place links to files in their cache, and /proc/self/maps has the files.
    return any(path.name == file.name and path.resolve() == file.resolve() for path in listed)


def outside(
    roots: Sequence[Path], environment: Mapping[str, str], known: Mapping[str, Origin]
) -> dict[str, str | None]:
    """Return facts about code outside the workspace and its copies (`roots`) that training may import.

    `known` are `origins`.

    `editable.NAME` is the source folder of an editable install, `python.path.outside` the existing folders on
    PYTHONPATH, each only if it is outside of `roots`. Such code can change under the same version number.
    """
    facts: dict[str, str | None] = {
        f"editable.{name}": unquote(urlsplit(origin.url).path)
        for name, origin in known.items()
        if origin.kind == "editable" and not origin.inside
    }
    entries = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    folders = [
        str(path)
        for path in entries
        if path.exists()
        and not any(_inside(roots[0] / path, root) for root in roots)
        and not own_package.is_copy_of_m5ws(path)
    ]
    return facts | {"python.path.outside": os.pathsep.join(folders) or None}


def _first() -> dict[str, tuple[str, metadata.Distribution]]:
    """Return versions and distributions by normalised name: imports use the first distribution on the path."""
    first: dict[str, tuple[str, metadata.Distribution]] = {}
    for distribution in metadata.distributions(path=_import_path()):
        name, version = _head(distribution)
        # A half-removed distribution has no name.
        if name:
            first.setdefault(canonicalize_name(name), (version, distribution))
    return first


def _import_path() -> list[str]:
    """Return the folders that imports search, without the private copies of a package.

    An import of setuptools appends `setuptools/_vendor` to `sys.path`. That folder does not count as installed.
    """
    folders = [Path(entry).absolute() for entry in sys.path]
    return [
        str(folder) for folder in folders if folder.name != "_vendor" or not (folder.parent / "__init__.py").exists()
    ]


def _head(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return the name and the version in the metadata, empty if absent.

    `Distribution.metadata` would also parse descriptions at each access: a third of a second for 200 distributions.
    """
    if known := _of_file(_read_fields, distribution, "METADATA"):
        return known
    return _fields(next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), ""))


@cache
def _read_fields(file: Path, _changed_ns: int) -> tuple[str, str]:
    return _fields(file.read_text(encoding="utf-8", errors="replace"))


def _fields(text: str) -> tuple[str, str]:
    values = {name.lower(): value for name, value in reversed(_FIELD.findall(text.partition("\n\n")[0]))}
    return values.get("name", ""), values.get("version", "")


def _origin(distribution: metadata.Distribution, conda_lines: Mapping[Path, str]) -> Origin | None:
    """Return the origin in conda's records, in direct_url.json, or in an egg-info folder (before PEP 610)."""
    line = conda_lines.get(getattr(distribution, "_path", Path()))
    if line is not None or (distribution.read_text("INSTALLER") or "").strip() == "conda":
        return Origin(kind="conda", url=line or "")
    direct_url = distribution.read_text("direct_url.json")
    if direct_url is not None:
        origin = _direct_origin(direct_url)
        copied = origin is not None and origin.kind == "directory"
        return msgspec.structs.replace(origin, hash=_files(distribution)) if origin is not None and copied else origin
    egg = _egg_folder(distribution)
    return Origin(kind="editable", url=egg.as_uri()) if egg is not None else None


def _direct_origin(direct_url: str) -> Origin | None:
    """Return the origin in the text of a direct_url.json, None if it is not valid.

    https://packaging.python.org/en/latest/specifications/direct-url-data-structure/
    """
    try:
        data: dict[str, Any] = json.loads(direct_url)
        url = _harmless(data["url"])
        if (folder := data.get("dir_info")) is not None:
            return Origin(kind="editable" if folder.get("editable") else "directory", url=url)
        below = data.get("subdirectory")
        if vcs := data.get("vcs_info"):
            return Origin(kind="vcs", url=url, vcs=vcs["vcs"], commit=vcs["commit_id"], subdirectory=below)
        archive = data["archive_info"]
        return Origin(kind="archive", url=url, hash=_sha256(archive), subdirectory=below)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _harmless(url: str) -> str:
    """Return a URL without secrets. The user name in a URL of SSH is not a secret, and is needed to fetch."""
    return secret_scan.masked(url if _SSH_USER.match(url) else _CREDENTIALS.sub("", url))


def _sha256(archive: Mapping[str, Any]) -> str | None:
    digest = (archive.get("hashes") or {}).get("sha256") or str(archive.get("hash") or "").removeprefix("sha256=")
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None


def _files(distribution: metadata.Distribution) -> str | None:
    """Return a SHA-256 of the installed files, by the hashes in the installer's list; None without hashes.

    Files that the installer adds (`.dist-info`, compiled modules) do not count.
    https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-record-file
    """
    lines = (distribution.read_text("RECORD") or "").splitlines()
    hashed = sorted(line for line in lines if ",sha256=" in line and ".dist-info/" not in line)
    return hashlib.sha256("\n".join(hashed).encode()).hexdigest() if hashed else None


def _egg_folder(distribution: metadata.Distribution) -> Path | None:
    """Return the source folder of a `setup.py develop` install: egg-info that is not in a site folder."""
    folder = getattr(distribution, "_path", None)
    if not isinstance(folder, Path) or folder.suffix != ".egg-info":
        return None
    return None if {"site-packages", "dist-packages"} & set(folder.parts) else folder.parent.absolute()


def _placed(origin: Origin, roots: tuple[Path, ...]) -> Origin:
    if origin.kind == "conda" or not origin.url.startswith("file:"):
        return origin
    path = Path(unquote(urlsplit(origin.url).path))
    root = next((root for root in roots if _inside(path, root)), None)
    if root is None:
        return origin
    place = path.resolve().relative_to(root.resolve()).as_posix()
    return Origin(kind=origin.kind, url=place, inside=True, hash=origin.hash, subdirectory=origin.subdirectory)


def _inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())
