"""Files that a run read from elsewhere become pinned inputs: links in the workspace, which `m5ws.toml` names.

A snapshot pins the content behind the links. Only content that the run read is adopted: a file that has changed since,
or has no recorded digest, is refused.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from m5ws.config import reader
from m5ws.config.toml_edit import with_entry, with_value, write
from m5ws.environment import reads
from m5ws.errors import M5Error, NotFound
from m5ws.projects.init import CONFIGURATION
from m5ws.records.reads import ReadPath
from m5ws.repository.repository import Repository
from m5ws.wording.lists import list_names

_TOKENIZER = "tokenizer.json"


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """A link `name` in the workspace to `target`, a file or folder, in a section of m5ws.toml.

    The run read `files` there. A folder is pinned whole, and `size_bytes` is the size of all its files.
    """

    name: str
    target: str
    section: Literal["data", "tokenizer"]
    files: int
    size_bytes: int


class AdoptionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The links to make in the workspace `root`, and the content of m5ws.toml before and after."""

    root: str
    adoptions: tuple[Adoption, ...]
    old: str
    new: str


def plan(repo: Repository, root: Path, run: str, paths: Sequence[Path]) -> AdoptionPlan:
    """Return the adoption of the files that a run read, of all unless `paths` names files or folders.

    Raises NotFound if the run read no such file, M5Error if a file has changed since or has no digest.
    """
    recorded = [read for read in reads.of_runs(repo, [run]).unpinned if not paths or _is_named(read, paths)]
    if not recorded:
        raise NotFound(
            f"run {run} read no such file outside its snapshot", hint=f"`m5ws show {run} --json` lists its reads."
        )
    unlike = [read.path for read in recorded if not _is_still(repo, read)]
    if unlike:
        raise M5Error(
            f"{list_names(unlike, most=3)}: not as run {run} read it, or without a recorded digest",
            hint="Restore the files, or name other paths after the run's id.",
        )
    settings = reader.read(root / CONFIGURATION)
    old = (root / CONFIGURATION).read_bytes().decode()
    has_tokenizer = settings.tokenizer.path is not None
    adoptions = tuple(_adoptions(root, recorded, paths, has_tokenizer=has_tokenizer))
    return AdoptionPlan(root=str(root), adoptions=adoptions, old=old, new=_edited(old, adoptions))


def apply(planned: AdoptionPlan) -> None:
    """Make the links, then change m5ws.toml. Raises M5Error if the file has changed since the plan, OSError."""
    root = Path(planned.root)
    if (root / CONFIGURATION).read_bytes().decode() != planned.old:
        raise M5Error(f"{CONFIGURATION} has changed meanwhile", hint="Repeat the command.")
    for adoption in planned.adoptions:
        if not (root / adoption.name).is_symlink():
            (root / adoption.name).symlink_to(adoption.target)
    write(root / CONFIGURATION, planned.new)


def _is_named(read: ReadPath, paths: Iterable[Path]) -> bool:
    return any(Path(read.path).is_relative_to(os.path.abspath(path)) for path in paths)


def _is_still(repo: Repository, read: ReadPath) -> bool:
    now = reads.measure(repo.objects, read.path)
    return now is not None and read.digest is not None and now.digest == read.digest


def _adoptions(
    root: Path, recorded: Sequence[ReadPath], paths: Sequence[Path], *, has_tokenizer: bool
) -> Iterator[Adoption]:
    taken = set[str]()
    for target in _targets(recorded, paths):
        files = [read for read in recorded if read.kind == "file" and Path(read.path).is_relative_to(target)]
        is_tokenizer = not has_tokenizer and any(Path(read.path).name == _TOKENIZER for read in files)
        has_tokenizer = has_tokenizer or is_tokenizer
        name = _free_name(root, target, taken)
        taken.add(name)
        yield Adoption(
            name=name,
            target=str(target),
            section="tokenizer" if is_tokenizer else "data",
            files=len(files),
            size_bytes=_size_bytes(target),
        )


def _size_bytes(target: Path) -> int:
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(target) for name in names] or [str(target)]
    return sum(os.lstat(path).st_size for path in paths)


def _targets(recorded: Sequence[ReadPath], paths: Sequence[Path]) -> list[Path]:
    """Return the targets of links: the named paths, else a folder with several reads, or a single file."""
    places = [Path(read.path) for read in recorded]
    folders = [Path(read.path) for read in recorded if read.kind == "folder"]
    folders += [place.parent for place in places if sum(place.parent == other.parent for other in places) > 1]
    targets = sorted({Path(os.path.abspath(path)) for path in paths} or {*folders, *places})
    return [target for target in targets if not any(other in target.parents for other in targets)]


def _free_name(root: Path, target: Path, taken: set[str]) -> str:
    """Return the name of a link that leads to the target already, or that is free."""
    names = (target.name if number == 1 else f"{target.name}-{number}" for number in range(1, 1 << 16))
    links = ((name, root / name) for name in names if name not in taken)
    return next(
        name for name, link in links if not os.path.lexists(link) or (link.is_symlink() and link.readlink() == target)
    )


def _edited(text: str, adoptions: Iterable[Adoption]) -> str:
    """Return m5ws.toml with the links in its sections."""
    for adoption in adoptions:
        if adoption.section == "tokenizer":
            text = with_value(text, ("tokenizer", "path"), adoption.name)
        else:
            text = with_entry(text, ("data", "paths"), adoption.name)
    return text
