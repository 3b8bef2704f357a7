"""Hashes of distributions in lock files, so that a rebuild installs the same files.

Supported are requirements files with `--hash` (pip-tools, uv), uv.lock, poetry.lock and pylock.toml (PEP 751). A file
of another format has no hashes, which is not an error: then the version alone is known.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

Hashes = dict[tuple[str, str], frozenset[str]]
"""By normalised name (PEP 503) and version: the SHA-256, in hex, of each file that may be installed."""

_SHA256 = re.compile(r"\bsha256[:=]([0-9a-f]{64})\b")
_HEX = re.compile(r"\A[0-9a-f]{64}\Z")
_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?\s*={2,3}\s*([^\s;\\]+)(.*)$")


def hashes(name: str, data: bytes) -> Hashes:
    """Return the hashes in the lock file `name`; none if it is not valid."""
    try:
        text = data.decode("utf-8")
        table = tomllib.loads(text) if PurePosixPath(name).suffix in (".lock", ".toml") else None
        by_version: dict[tuple[str, str], set[str]] = {}
        for package, version, digest in _requirements(text) if table is None else _packages(table):
            by_version.setdefault((_normalised(package), version), set()).add(digest)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        return {}
    return {key: frozenset(digests) for key, digests in by_version.items()}


def _requirements(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and hash of `name==version --hash=sha256:…`; a backslash continues a line."""
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        if pinned := _PINNED.match(line.strip()):
            for digest in _SHA256.findall(pinned[3]):
                yield pinned[1], pinned[2], digest


def _packages(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and hash in a lock file in TOML. Formats differ in the keys below a package."""
    listed = table.get("package", table.get("packages", []))
    for package in listed if isinstance(listed, list) else []:
        match package:
            case {"name": str(name), "version": str(version)}:
                yield from ((name, version, digest) for digest in _below(package))


def _below(value: object) -> Iterator[str]:
    """Yield each SHA-256 in a package: `hash = "sha256:…"` (uv, poetry) or `hashes = {sha256 = "…"}` (PEP 751)."""
    if isinstance(value, list):
        for item in value:
            yield from _below(item)
    elif isinstance(value, dict):
        if isinstance(digest := value.get("sha256"), str):
            # The hash becomes an argument of pip: other text could be an option, or another line.
            yield from _HEX.findall(digest)
        if isinstance(digest := value.get("hash"), str):
            yield from _SHA256.findall(digest)
        for item in value.values():
            yield from _below(item)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
