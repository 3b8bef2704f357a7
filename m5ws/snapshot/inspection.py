"""Checks for files that must not be captured: secrets, Git LFS pointers, links to files outside the capture.

Every check runs before the first byte is stored. The index remembers the digests of files that passed, so an unchanged
file is not read again.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.config.settings import SEARCH_RULES
from m5ws.errors import M5Error
from m5ws.filesystem import Stamp, stamp
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.objects import Objects
from m5ws.snapshot import patterns

_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_BYTES = range(len(_POINTER), 1024)


class LfsContentMissing(M5Error):
    """Files are Git LFS pointers, and their content is missing."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__("\n".join(("these files are Git LFS pointers without their content:", *_listed(paths))))
        self.hint = "Run `git lfs pull`, or exclude the files: [code] exclude in m5ws.toml."


class LinksEscapeWorkspace(M5Error):
    """Links lead to existing files that are not captured: a run would read files that no snapshot pins."""

    def __init__(self, links: Sequence[str]) -> None:
        super().__init__("\n".join(("these links lead to files that are not captured:", *_listed(links))))
        self.hint = (
            "Pin the targets ([data] paths in m5ws.toml follows links), make links within the workspace relative, "
            "or exclude the links: [code] exclude."
        )


class InspectedFiles(msgspec.Struct, frozen=True):
    """Inspected files, with their stamps at that time."""

    files: tuple[SourceFile, ...]
    stamps: tuple[Stamp, ...]

    def check(self) -> None:
        """Raise FileChanged if a file has changed since: the stored content is then not the inspected content."""
        for file, before in zip(self.files, self.stamps, strict=True):
            if stamp(os.lstat(file.location)) != before:
                raise FileChanged(f"{os.fsdecode(file.path)} was changed while it was captured")


def inspect_code(
    root: Path, files: Sequence[SourceFile], objects: Objects, index: Index, allow: Sequence[str]
) -> InspectedFiles:
    """Check code and config files. Raises SecretsFound, LfsContentMissing, LinksEscapeWorkspace."""
    stats = [os.lstat(file.location) for file in files]
    _refuse_links_outside(root, files, stats)
    clean, passed = index.marks(f"clean/{SEARCH_RULES}"), set[str]()
    findings: list[secret_scan.SecretMatch] = []
    pointers: list[str] = []
    allowed = patterns.naming(allow)
    for file, status in zip(files, stats, strict=True):
        name = file.path.decode("utf-8", "backslashreplace")
        permitted = allowed(file.path)
        if not permitted and (kind := secret_scan.kind_by_name(name)):
            findings.append(secret_scan.SecretMatch(path=name, line=0, what=kind))
        if not stat.S_ISREG(status.st_mode):
            continue
        if status.st_size > secret_scan.SCANNED_BYTES:
            if not permitted:
                with open(file.location, "rb") as opened:
                    findings += secret_scan.findings_in(name, opened)
            continue
        known = index.file(os.fsencode(file.location), stamp(status))
        if known in clean and not secret_scan.is_environment_file(name):
            passed.add(str(known))
            continue
        data = _read(file)
        suspicious = secret_scan.findings(name, data)
        if data.startswith(_POINTER):
            pointers.append(name)
        elif not suspicious:
            passed.add(objects.digest(data))
        if not permitted:
            findings += suspicious
    _refuse([*findings, *_named_secrets(files, allowed)], pointers)
    index.remember_marks(f"clean/{SEARCH_RULES}", passed)
    return InspectedFiles(tuple(files), tuple(map(stamp, stats)))


def inspect_content(files: Iterable[SourceFile], allow: Sequence[str]) -> None:
    """Check names, and the content of small files, that are pinned by content. Raises as `inspect_code`."""
    findings: list[secret_scan.SecretMatch] = []
    pointers: list[str] = []
    allowed, files = patterns.naming(allow), list(files)
    for file in files:
        name, status = file.path.decode("utf-8", "backslashreplace"), os.lstat(file.location)
        permitted = allowed(file.path)
        if not permitted and (kind := secret_scan.kind_by_name(name)):
            findings.append(secret_scan.SecretMatch(path=name, line=0, what=kind))
        if not stat.S_ISREG(status.st_mode) or status.st_size > secret_scan.SMALL_BYTES:
            continue
        data = _read(file)
        if data.startswith(_POINTER) and status.st_size in _POINTER_BYTES:
            pointers.append(name)
        if not permitted:
            findings += secret_scan.findings(name, data)
    _refuse([*findings, *_named_secrets(files, allowed)], pointers)


def _named_secrets(files: Iterable[SourceFile], allowed: Callable[[bytes], bool]) -> Iterator[secret_scan.SecretMatch]:
    """Yield the files whose names contain a secret. All names are searched at once, because few contain any."""
    names = [file.path.decode("utf-8", "backslashreplace") for file in files if not allowed(file.path)]
    if secret_scan.masked(joined := "\n".join(names)) != joined:
        for name in names:
            if (shown := secret_scan.masked(name)) != name:
                yield secret_scan.SecretMatch(path=shown, line=0, what="a secret in the name of the file")


def _read(file: SourceFile) -> bytes:
    with open(file.location, "rb", buffering=0) as opened:
        return opened.read()


def _refuse(findings: Sequence[secret_scan.SecretMatch], pointers: Sequence[str]) -> None:
    """Raise SecretsFound or LfsContentMissing if there are any."""
    if findings:
        raise secret_scan.SecretsFound(findings)
    if pointers:
        raise LfsContentMissing(pointers)


def _refuse_links_outside(root: Path, files: Sequence[SourceFile], stats: Sequence[os.stat_result]) -> None:
    outside: list[str] = []
    for file, status in zip(files, stats, strict=True):
        if not stat.S_ISLNK(status.st_mode) or not os.path.exists(file.location):
            continue
        target = os.readlink(file.location)
        location = os.path.normpath(os.path.join(os.path.dirname(file.location), target))
        if os.path.isabs(target) or not Path(location).is_relative_to(root):
            outside.append(f"{os.fsdecode(file.path)} -> {target}")
    if outside:
        raise LinksEscapeWorkspace(outside)


def _listed(lines: Sequence[str]) -> list[str]:
    return [f"  {line}".encode("utf-8", "backslashreplace").decode() for line in lines]
