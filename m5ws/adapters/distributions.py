"""Installed Python distributions, and Python code that training would import from outside the workspace."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


def installed() -> dict[str, str]:
    """Return each distribution's normalised name (PEP 503) and version, as imports of this interpreter see it."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # The first on the path is the one that is imported. A half-removed distribution has no name.
        if name := distribution.metadata["Name"]:
            found.setdefault(_normalised(name), distribution.version)
    return dict(sorted(found.items()))


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def outside(root: Path, environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return facts on code that no snapshot of `root` holds although training may import it.

    `editable.NAME` is the source folder of an editable install, `python.path.outside` the folders on PYTHONPATH,
    each only if it lies outside the workspace. What is there can change under a pinned version number.
    """
    found: dict[str, str | None] = {
        f"editable.{name}": str(path) for name, path in _editable() if not _inside(path, root)
    }
    entries = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    folders = [str(path) for path in entries if not _inside(root / path, root)]
    return found | {"python.path.outside": os.pathsep.join(folders) or None}


def _editable() -> Iterator[tuple[str, Path]]:
    """Yield editable installs (PEP 610: direct_url.json; before it: an egg-info folder beside the source)."""
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if not name:
            continue
        if path := _editable_path(distribution.read_text("direct_url.json")):
            yield _normalised(name), path
        elif distribution.read_text("direct_url.json") is None and (egg := _egg_folder(distribution)):
            yield _normalised(name), egg


def _editable_path(direct_url: str | None) -> Path | None:
    try:
        data = json.loads(direct_url or "{}")
        parts = urlsplit(data["url"])
        editable = data["dir_info"]["editable"]
    except (ValueError, KeyError, TypeError):
        return None
    return Path(unquote(parts.path)) if parts.scheme == "file" and editable else None


def _egg_folder(distribution: metadata.Distribution) -> Path | None:
    """Return the source folder of a `setup.py develop` install: egg-info that is not in a site folder."""
    where = getattr(distribution, "_path", None)
    if not isinstance(where, Path) or where.suffix != ".egg-info":
        return None
    return None if {"site-packages", "dist-packages"} & set(where.parts) else where.parent


def _inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())
