"""Workspaces with something of all that an answer rests on, and commands run in them as they are typed."""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import m5ws.__main__
from checkouts import git, write
from m5ws import again, workspace
from m5ws.adapters import git_start
from m5ws.adapters.machine import Machine
from m5ws.records import Observed, Origin
from workspace_changes import make

SETTINGS = """
[config]
files = ["config.yaml", "local.yaml", "conf/*.yaml"]
[data]
paths = ["data", "far/set"]
[tokenizer]
path = "tok"
probe = ""
[environment]
locks = ["deps.log", "reqs/more.log"]
"""
_PIN = "outs:\n- md5: 5d41402abc4b2a76b9719d911017c592\n  path: known\n  hash: md5\n"


class Answer(NamedTuple):
    """What a command printed, and whether that was what was noted."""

    out: str
    err: str
    again: bool


Ask = Callable[..., Answer]


class KnownMachine(Machine):
    """This machine, but what is observed of it, which no answer rests on, is known, and nothing is installed locally.

    To observe it takes a process that imports torch, again for each environment that a test makes.
    """

    def observe(self, environment: Mapping[str, str]) -> Observed:
        return Observed(facts={"python": "3.11"})

    def origins(self, image: str | None) -> dict[str, Origin]:
        return {}


@contextmanager
def typed(root: Path, *words: str, status: int = 0) -> Iterator[list[bool]]:
    """Run `m5ws` with these words in `root`, which ends with `status`; yield whether a noted answer was given."""
    hidden, here, argv, threshold = os.environ.pop("PYTEST_CURRENT_TEST", ""), os.getcwd(), sys.argv, gc.get_threshold()
    answer, noted = again.Again.answer, list[bool]()
    adapters = workspace._ADAPTERS
    observer = adapters["observer"]

    def watched(*arguments: Any) -> again.Note | None:
        found = answer(*arguments)
        noted.append(found is not None)
        return found

    os.chdir(root)
    sys.argv = ["m5ws", *words]
    adapters["observer"] = f"{__name__}:{KnownMachine.__name__}"
    again.Again.answer = watched  # type: ignore[assignment, method-assign]
    try:
        assert m5ws.__main__.main() == status
        yield noted
    finally:
        git_start.begin_ahead(os.sep, {})  # forgets what this command began
        adapters["observer"] = observer
        again.Again.answer, sys.argv = answer, argv  # type: ignore[method-assign]
        gc.set_threshold(*threshold)
        os.chdir(here)
        os.environ["PYTEST_CURRENT_TEST"] = hidden


def other_settings(root: Path, *, settings: str) -> None:
    write(root, {"m5ws.toml": settings})


def swap(folder: Path) -> None:
    """Put another folder, with files that are older than any look, in the place of one; neither is changed."""
    folder.rename(folder.with_name(f"{folder.name}-before"))
    folder.with_name(f"{folder.name}-other").rename(folder)


def noted_place(base: Path, change: str, number: int = 0) -> Path:
    """Make a workspace with something of everything that settings can name, and return its folder."""
    root = base / str(number)
    make(root, change)
    write(root, {"m5ws.toml": SETTINGS, "tok/vocab.json": "{'a': 1}", "tok/special.json": "{}"})
    write(root, {"deps.log": "numpy==1\n", "known": "hello", "known.dvc": _PIN})
    write(root, {"far/set/a.bin": "a", "far-other/set/a.bin": "b", "reqs/more.log": "torch==2\n"})
    write(root, {".git/info/exclude": ".dvcignore\n/far*\nreqs\n"})
    write(base, {f"{root.name}-far/inner/a.bin": "a", f"{root.name}-far-other/inner/a.bin": "b"})
    (root / "data" / "link").symlink_to("../elsewhere.log")
    (root / "data" / "gone").symlink_to("nothing")
    (root / "data" / "behind").symlink_to(base / f"{root.name}-far" / "inner")
    git(root, "add", "m5ws.toml")
    return root
