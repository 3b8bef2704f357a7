"""A new workspace: an `m5ws.toml` that says every setting, and a template's files.

Nothing of the user's is ever written over: if one file of the plan is there already, none is written.
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import m5ws
from m5ws.errors import M5Error, NotFound

CONFIGURATION = "m5ws.toml"
_IGNORE = ".gitignore"
_SKIPPED = frozenset({"__pycache__", ".m5ws", ".git", ".venv", ".pytest_cache", ".ruff_cache", ".mypy_cache"})


class FilesExist(M5Error):
    """Files that `init` would write are there already."""

    hint = "Nothing was changed. Choose another directory, or move these away."


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to be written: `path` below the workspace, and its whole content."""

    path: str
    data: bytes
    executable: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `init` will write below `root`; `kept` names ignore files of the user's that stay as they are."""

    root: Path
    template: str | None
    files: tuple[NewFile, ...]
    kept: tuple[str, ...] = ()


def templates(folder: Path | None = None) -> list[str]:
    """Return the names of the templates in `folder`, or of those that this m5ws has."""
    root = folder or templates_dir()
    if not root.is_dir():
        return []
    return sorted(entry.name for entry in root.iterdir() if (entry / CONFIGURATION).is_file())


def templates_dir() -> Path:
    """Return where templates are: inside the installed package, or beside it in a checkout."""
    package = Path(m5ws.__file__).parent
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "templates"


def plan(
    root: Path, template: str | None = None, folder: Path | None = None, store: Mapping[str, str] | None = None
) -> Plan:
    """Return what a new workspace at `root` needs; `folder` holds the templates, if not those of this m5ws.

    `store` is what m5ws.toml is to say of the store, by key.

    Raises FilesExist with every file that is in the way, NotFound for a template that there is not.
    """
    files = list(_template_files(_template_dir(template, folder or templates_dir()))) if template else []
    if not any(file.path == CONFIGURATION for file in files):
        files.append(NewFile(path=CONFIGURATION, data=_configuration(root).encode()))
    if store:
        files = [_with_store(file, store) if file.path == CONFIGURATION else file for file in files]
    kept = [file.path for file in files if Path(file.path).name == _IGNORE and os.path.lexists(root / file.path)]
    files = [file for file in files if file.path not in kept]
    taken = [path for file in files if (path := _in_the_way(root, file.path)) is not None]
    if taken:
        names = "".join(f"\n  {path}" for path in sorted(set(taken)))
        raise FilesExist(f"{root} has files that `init` would write:{names}")
    return Plan(root=root, template=template, files=tuple(files), kept=tuple(kept))


def apply(planned: Plan) -> None:
    """Write the planned files, each only if nothing is there. Raises FilesExist if one has appeared meanwhile."""
    planned.root.mkdir(parents=True, exist_ok=True)
    # m5ws.toml goes last: the directory is a workspace only when the rest is there.
    for file in sorted(planned.files, key=lambda file: file.path == CONFIGURATION):
        target = planned.root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if file.executable else 0o666)
        except FileExistsError as error:
            raise FilesExist(f"{target} was made by somebody else meanwhile", hint="Look at it; try again.") from error
        with open(descriptor, "wb") as writer:
            writer.write(file.data)


def in_git(root: Path) -> bool:
    """Return whether `root` lies in a git working tree, which is what makes code states nameable."""
    return any((above / ".git").exists() for above in (root, *root.absolute().parents))


def _in_the_way(root: Path, path: str) -> str | None:
    """Return what is at `path` already, or the file that stands where a directory of `path` must be."""
    if os.path.lexists(root / path):
        return path
    for above in Path(path).parents:
        if os.path.lexists(root / above) and not (root / above).is_dir():
            return str(above)
    return None


def _template_dir(name: str, folder: Path) -> Path:
    known = templates(folder)
    if name in known:
        return folder / name
    close = difflib.get_close_matches(name, known, n=2)
    meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise NotFound(f"there is no template {name!r}{meant}", hint=f"Templates: {', '.join(known) or 'none'}.")


def _template_files(directory: Path) -> Iterator[NewFile]:
    """Yield a template's files; links into the folder that templates share are followed."""
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


def _with_store(file: NewFile, store: Mapping[str, str]) -> NewFile:
    """Return an m5ws.toml that says of the store what is given; comments and all else stay."""
    said = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in store.items())
    text = file.data.decode()
    if "\n[store]\n" in text:
        text = text.replace("\n[store]\n", f"\n[store]\n{said}", 1)
    else:
        text = f"{text.rstrip()}\n\n[store]\n{said}"
    return msgspec.structs.replace(file, data=text.encode())


def _configuration(root: Path) -> str:
    # json's escapes are TOML's: the name of any directory becomes a valid string.
    name = msgspec.json.encode(os.fsencode(root.absolute().name).decode("utf-8", "replace")).decode()
    return _TEXT.replace("@NAME@", name)


_TEXT = """\
# What `m5ws snapshot` pins and how `m5ws run` trains. Commented lines show the defaults.
# A key that m5ws does not know is an error. docs/reference/configuration.md has all of them.

name = @NAME@

[store]
# A directory, relative to this file or absolute; or a bucket, s3://bucket/prefix, to which the other keys belong.
# url = ".m5ws/store"
# region = "eu-west-1"
# endpoint_url = "https://s3.example.org"
# sse = "aws:kms"
# sse_kms_key = "alias/training"
# storage_class = "INTELLIGENT_TIERING"
# integrity = "signed"
# stall_s = 20.0
# Copies of what is read from a remote store. Empty: m5ws in the user's cache directory. A limit of 0 keeps none.
# cache = ""
# cache_limit = "50 GiB"

[code]
# All that git tracks, and what it neither tracks nor ignores, is captured as it is in the working tree.
# Patterns as in .gitignore, for files that are left out all the same.
# exclude = []

[config]
# YAML, JSON or TOML files whose keys `m5ws diff` compares and `m5ws run --set key=value` changes.
# files = ["config.yaml"]

[tokenizer]
# A file or folder. The token ids of the probe text are pinned with it.
# path = "tokenizer"
# probe = "The quick brown fox jumps over 13 lazy dogs."

[data]
# Files or folders that are pinned by content, whether git ignores them or not; and what DVC tracks.
# paths = []
# dvc = true

[environment]
# What you ask for: lock files, container image (by digest), versions by name. What is there is observed.
# locks = ["constraints.txt", "requirements.txt", "uv.lock", "poetry.lock", "environment.yml"]
# image = "registry.example.org/train@sha256:..."
# wanted = { nccl = "2.27.3" }
# Environment variables whose values are recorded. No others are.
# variables = []
# Distributions that may be installed from files outside the workspace, editable or not. Others are refused.
# allow_local = []

[determinism]
# "strict" makes an operation without a deterministic version an error, "warn" a warning, "off" allows it.
# "portable" is "strict", with the same bits on every x86-64 processor with AVX2.
# level = "strict"
# threads = 1
# python_hash_seed = 0
# tf32 = false
# fill_uninitialized = false
# cublas_workspace = ":4096:8"
# nccl_algo = "Ring"

[run]
# command = ["train.py"]
# trainer = "torchrun"
# nproc = 1
# seed = 0
# Steps or minutes between checkpoints, and steps between fingerprints of the state.
# checkpoint_every = 100
# checkpoint_minutes = 30
# fingerprint_every = 100
# Folders the script writes to; what is in them is kept when the run ends.
# outputs = []
# Where the scripts are at work: a private folder outside any checkout. Empty: m5ws/work in the user's state directory.
# work_dir = ""
# ignore = []
# environment = { NAME = "value" }

[checkpoint]
# The training waits for the copy of its state alone; with false, until the checkpoint is published.
# asynchronous = true
# So many failed checkpoints in a row end the training; without it, none does.
# failures = 3
# How long a run that is told to stop (Ctrl-C, SIGTERM, SIGUSR2) may take for its last checkpoint.
# deadline_s = 110

[mlflow]
# enabled = true
# The default is a file in .m5ws; the variable MLFLOW_TRACKING_URI names a server for all workspaces.
# tracking_uri = "http://mlflow.example.org:5000"
# experiment = "name of this workspace"

[retention]
# Without these, `m5ws gc` keeps every checkpoint. With them: the last n of each run, and those at every nth step.
# last = 3
# every = 1000

[secrets]
# Files that look like keys or passwords are refused. Patterns of those that are harmless.
# allow = []
"""
