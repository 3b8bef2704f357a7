"""Installed Python distributions: their versions, and where those came from that no index gave.

m5ws itself is no code of a run's: wherever it is installed from, its version and a digest of what ranks load of it
are facts of their own (own_package.py).
"""

import hashlib
import inspect
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from email import message_from_string
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from m5ws import secret_scan
from m5ws.environment.observe import own_package
from m5ws.records.environment import Origin

_FIELD = re.compile(r"^(name|version):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_PARTS = re.compile(r'^"?([^/,\n".][^/,\n"]*)(?:/([^/,\n"]+))?', re.MULTILINE)
_BESIDE = re.compile(r'^"?(?:\.\./){3}([^,\n"]*\.so[^,\n"]*)', re.MULTILINE)
_NO_CODE = (".dist-info", ".data", "__pycache__")
_SSH_USER = re.compile(r"ssh://[\w.-]+@[^@/]+/")


def installed() -> dict[str, str]:
    """Return each distribution's normalised name (PEP 503) and version, as imports of this interpreter see it."""
    return {name: version for name, (version, _) in sorted(_first().items())}


def origins(*roots: Path) -> dict[str, Origin]:
    """Return where distributions came from that no index gave by its name, but for m5ws.

    What lies inside one of `roots` (a workspace, or a copy of one) is named by its path there.
    """
    found = {name: _origin(one) for name, (_, one) in sorted(_first().items()) if name != own_package.NAME}
    return {name: _placed(origin, roots) for name, origin in found.items() if origin is not None}


def provides() -> dict[str, tuple[str, ...]]:
    """Return the modules and folders of each distribution that lists its files, as `Observed.provides` has them.

    An editable install lists none. https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    found = {name: _listed(distribution) for name, (_, distribution) in sorted(_first().items())}
    every = {place for places in found.values() for place in places}
    owners = Counter(top for places in found.values() for top in {place.partition("/")[0] for place in places})
    # Of a folder that distributions share, each has its own parts, unless the folder is a module itself.
    whole = {top for top, count in owners.items() if top and (count == 1 or f"{top}/__init__" in every)}

    def named(place: str) -> str:
        return top if (top := place.partition("/")[0]) in whole else place

    return {name: tuple(sorted(set(map(named, places)))) for name, places in found.items() if places}


def _listed(distribution: metadata.Distribution) -> frozenset[str]:
    """Return the places of a distribution's files, by two parts of their paths at most; none without a list."""
    where = getattr(distribution, "_path", None)
    record = where / "RECORD" if isinstance(where, Path) else None
    try:
        return _places(record, record.stat().st_mtime_ns) if record is not None else frozenset()
    except OSError:
        return frozenset()


@cache
def _places(record: Path, _changed_ns: int) -> frozenset[str]:
    """Return the places that a list of files names. It is read once in a process, unless it was changed."""
    text = record.read_text(encoding="utf-8", errors="replace")
    modules = (_module(top, below) for top, below in set(_PARTS.findall(text)) if not top.endswith(_NO_CODE))
    # What a wheel puts beside the folders of modules, as MKL's does, is named from the environment's folder on.
    return frozenset({*filter(None, modules), *(f"/{path}" for path in _BESIDE.findall(text))})


def _module(top: str, below: str) -> str | None:
    """Return the place of a file: the name of a module, the first two parts of a path in a folder."""
    if not below:
        return inspect.getmodulename(top)
    return f"{top}/{inspect.getmodulename(below) or below}"


def outside(
    root: Path, environment: Mapping[str, str], known: Mapping[str, Origin] | None = None
) -> dict[str, str | None]:
    """Return facts on code that no snapshot of `root` holds although training may import it; `known` are `origins`.

    `editable.NAME` is the source folder of an editable install, `python.path.outside` the folders on PYTHONPATH,
    each only if it lies outside the workspace. What is there can change under a pinned version number.
    """
    found: dict[str, str | None] = {
        f"editable.{name}": unquote(urlsplit(origin.url).path)
        for name, origin in (origins(root) if known is None else known).items()
        if origin.kind == "editable" and not origin.inside
    }
    entries = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    folders = [
        str(path) for path in entries if not _inside(root / path, root) and not own_package.is_copy_of_m5ws(path)
    ]
    return found | {"python.path.outside": os.pathsep.join(folders) or None}


def _first() -> dict[str, tuple[str, metadata.Distribution]]:
    """Return versions and distributions by normalised name: the first on the path is the one that is imported."""
    found: dict[str, tuple[str, metadata.Distribution]] = {}
    for distribution in metadata.distributions(path=_import_path()):
        name, version = _head(distribution)
        # A half-removed distribution has no name.
        if name:
            found.setdefault(_normalised(name), (version, distribution))
    return found


def _import_path() -> list[str]:
    """Return the folders that imports search, without the private copies of a package.

    An import of setuptools appends `setuptools/_vendor` to `sys.path`: what is installed does not change by it.
    """
    folders = [Path(entry).absolute() for entry in sys.path]
    return [
        str(folder) for folder in folders if folder.name != "_vendor" or not (folder.parent / "__init__.py").exists()
    ]


def _head(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return the name and the version that the metadata say; empty where they say none.

    `Distribution.metadata` parses descriptions too, each time it is asked: a third of a second for 200 distributions.
    """
    text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
    head = text.partition("\n\n")[0]
    found = {name.lower(): value for name, value in reversed(_FIELD.findall(head))}
    if len(found) < 2:  # of another form than any installer writes
        fields = message_from_string(head)
        return str(fields["Name"] or "").strip(), str(fields["Version"] or "").strip()
    return found["name"], found["version"]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _origin(distribution: metadata.Distribution) -> Origin | None:
    """Return what the installer noted (direct_url.json); before PEP 610, an egg-info folder lay beside the source."""
    if (distribution.read_text("INSTALLER") or "").strip() == "conda":
        return Origin(kind="conda")
    noted = distribution.read_text("direct_url.json")
    if noted is not None:
        origin = _noted(noted)
        copied = origin is not None and origin.kind == "directory"
        return msgspec.structs.replace(origin, hash=_files(distribution)) if origin is not None and copied else origin
    egg = _egg_folder(distribution)
    return Origin(kind="editable", url=egg.as_uri()) if egg is not None else None


def _noted(direct_url: str) -> Origin | None:
    """Return what direct_url.json says, None if it is none.

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
    """Return a URL with no secret in it. A user of SSH without a password is none, and nothing is fetched without."""
    return secret_scan.masked(url if _SSH_USER.match(url) else _CREDENTIALS.sub("", url))


def _sha256(archive: Mapping[str, Any]) -> str | None:
    digest = (archive.get("hashes") or {}).get("sha256") or str(archive.get("hash") or "").removeprefix("sha256=")
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None


def _files(distribution: metadata.Distribution) -> str | None:
    """Return a SHA-256 of what was installed, by the hashes that the installer noted; None if it noted none.

    What an installer adds of its own (`.dist-info`, compiled modules) is left out.
    https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-record-file
    """
    lines = (distribution.read_text("RECORD") or "").splitlines()
    noted = sorted(line for line in lines if ",sha256=" in line and ".dist-info/" not in line)
    return hashlib.sha256("\n".join(noted).encode()).hexdigest() if noted else None


def _egg_folder(distribution: metadata.Distribution) -> Path | None:
    """Return the source folder of a `setup.py develop` install: egg-info that is not in a site folder."""
    where = getattr(distribution, "_path", None)
    if not isinstance(where, Path) or where.suffix != ".egg-info":
        return None
    return None if {"site-packages", "dist-packages"} & set(where.parts) else where.parent.absolute()


def _placed(origin: Origin, roots: tuple[Path, ...]) -> Origin:
    if not origin.url.startswith("file:"):
        return origin
    path = Path(unquote(urlsplit(origin.url).path))
    root = next((root for root in roots if _inside(path, root)), None)
    if root is None:
        return origin
    place = path.resolve().relative_to(root.resolve()).as_posix()
    return Origin(kind=origin.kind, url=place, inside=True, hash=origin.hash, subdirectory=origin.subdirectory)


def _inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())
