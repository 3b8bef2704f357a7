"""A new workspace: an `m5ws.toml` with every setting, and a template's files.

User files are never overwritten. If one file of the plan exists, none is written.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import m5ws
from m5ws.config import reader
from m5ws.errors import M5Error, NotFound

CONFIGURATION = "m5ws.toml"
Tables = Mapping[str, Mapping[str, str]]
_IGNORE = ".gitignore"
_SKIPPED = frozenset({"__pycache__", ".m5ws", ".git", ".venv", ".pytest_cache", ".ruff_cache", ".mypy_cache"})


class FilesExist(M5Error):
    """Files that `init` writes already exist."""

    hint = "Nothing was changed. Choose another directory, or move these files away."


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to write: `path` below the workspace, and its content."""

    path: str
    data: bytes
    executable: bool = False


class ProjectPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The files that `init` writes below `root`. `kept` lists existing ignore files that stay unchanged."""

    root: Path
    files: tuple[NewFile, ...]
    kept: tuple[str, ...] = ()


def templates() -> list[str]:
    """Return the names of the templates."""
    return sorted(entry.name for entry in templates_dir().iterdir() if (entry / CONFIGURATION).is_file())


def templates_dir() -> Path:
    """Return the directory of templates: inside the installed package, or beside it in a checkout."""
    package = Path(m5ws.__file__).parent
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "templates"


def plan(root: Path, template: str | None = None, tables: Tables | None = None, team: str | None = None) -> ProjectPlan:
    """Return the files of a new workspace at `root`. `tables` have keys and values for sections of m5ws.toml.

    With `team`, m5ws.toml extends that profile, and a new profile has the keys of `tables`. Raises FilesExist with
    every existing file, or with the store of an existing workspace, NotFound for an unknown template.
    """
    if (root / CONFIGURATION).is_file():
        url = reader.read(root / CONFIGURATION).store.url
        hint = f"Nothing was changed. To use another store, set url in [store] of {CONFIGURATION}, or extends above it."
        raise FilesExist(f"{root} is a workspace already, and its store is {url}", hint=hint)
    files = list(_template_files(_template_dir(template))) if template else []
    if not any(file.path == CONFIGURATION for file in files):
        files.append(NewFile(path=CONFIGURATION, data=_configuration(root).encode()))
    if team is not None:
        files = [_extending(file, team) if file.path == CONFIGURATION else file for file in files]
        files += [] if (root / team).is_file() else [_profile(root, team)]
    for section, values in (tables or {}).items():
        files = [_with_keys(file, section, values) if file.path == (team or CONFIGURATION) else file for file in files]
    kept = [file.path for file in files if Path(file.path).name == _IGNORE and os.path.lexists(root / file.path)]
    files = [file for file in files if file.path not in kept]
    taken = [path for file in files if (path := _in_the_way(root, file.path)) is not None]
    if taken:
        names = "".join(f"\n  {path}" for path in sorted(set(taken)))
        raise FilesExist(f"{root} has files that `init` would write:{names}")
    return ProjectPlan(root=root, files=tuple(files), kept=tuple(kept))


def apply(planned: ProjectPlan) -> None:
    """Write the planned files, each only if it does not exist. Raises FilesExist if one has appeared meanwhile."""
    planned.root.mkdir(parents=True, exist_ok=True)
    # m5ws.toml is written last, so the directory is a workspace only if it is complete.
    for file in sorted(planned.files, key=lambda file: file.path == CONFIGURATION):
        target = planned.root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if file.executable else 0o666)
        except FileExistsError as error:
            raise FilesExist(f"{target} was created meanwhile", hint="Check the file, then try again.") from error
        with open(descriptor, "wb") as writer:
            writer.write(file.data)


def in_git(root: Path) -> bool:
    """Return True if `root` is in a git working tree, so that snapshots have a commit."""
    return any((above / ".git").exists() for above in (root, *root.absolute().parents))


def _in_the_way(root: Path, path: str) -> str | None:
    """Return `path` if it exists, or the file in place of one of its directories; else None."""
    if os.path.lexists(root / path):
        return path
    for above in Path(path).parents:
        if os.path.lexists(root / above) and not (root / above).is_dir():
            return str(above)
    return None


def _template_dir(name: str) -> Path:
    if name not in (known := templates()):
        raise NotFound(f"there is no template {name!r}", hint=f"Templates: {', '.join(known) or 'none'}.")
    return templates_dir() / name


def _template_files(directory: Path) -> Iterator[NewFile]:
    """Yield a template's files. Links into the shared folder of templates are followed."""
    for folder, folders, names in os.walk(directory, followlinks=True):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix != ".pyc" and path.is_file():
                yield NewFile(
                    path=path.relative_to(directory).as_posix(),
                    data=path.read_bytes(),
                    executable=os.access(path, os.X_OK),
                )


def _with_keys(file: NewFile, section: str, values: Mapping[str, str]) -> NewFile:
    """Return a file with these keys in a section. Comments and other sections stay."""
    keys = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
    text, header = file.data.decode(), f"\n[{section}]\n"
    text = text.replace(header, header + keys, 1) if header in text else f"{text.rstrip()}\n{header}{keys}"
    return msgspec.structs.replace(file, data=text.encode())


def _extending(file: NewFile, team: str) -> NewFile:
    """Return an m5ws.toml that extends a profile, and has no section [store]."""
    text = re.sub(r"(?ms)^\[store\]\n.*?(?=^\[|\Z)", "", file.data.decode())
    # The first line that is no comment begins a key of the root, or the first table.
    line = f"extends = {json.dumps(team, ensure_ascii=False)}\n"
    text = re.sub(r"(?m)^(?=[^#\s]|\Z)", lambda _: line, text, count=1)
    return msgspec.structs.replace(file, data=text.encode())


def _profile(root: Path, team: str) -> NewFile:
    """Return a new profile. Raises NotFound without its folder, which is not created: a mount may be missing."""
    folder = (root / team).parent
    if not folder.is_dir() and folder != root:
        raise NotFound(f"there is no folder {folder} for the profile", hint="Create or mount the folder.")
    return NewFile(path=team, data=Path(__file__).with_name("profile.toml").read_bytes())


def _configuration(root: Path) -> str:
    # JSON's escapes are valid in TOML, so any directory name becomes a valid string.
    name = msgspec.json.encode(os.fsencode(root.absolute().name).decode("utf-8", "replace")).decode()
    return Path(__file__).with_name("configuration.toml").read_text().replace("@NAME@", name)
