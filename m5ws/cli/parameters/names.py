"""Arguments that name a snapshot, a run or a sweep.

Shell completion offers the runs that were started in this workspace, without a request to the store. It must never
break a command line: without a workspace it offers nothing.
"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.shell_completion import CompletionItem

from m5ws.cli.terminal import output, progress
from m5ws.workspace import Workspace, find

if TYPE_CHECKING:
    from m5ws.repository.repository import Repository

Kind = Literal["snapshot", "run", "sweep"]
_BOTH: tuple[Kind, ...] = ("snapshot", "run")


def workspace(context: click.Context) -> Workspace:
    """Return the workspace of `-C` or the current directory. Raises NotFound, ConfigError.

    From here on, a command may wait for the store, which is shown until the command prints.
    """
    progress.name_silence("reading the store")
    context.call_on_close(output.end_silence)
    if isinstance(given := context.find_root().obj, Workspace):
        return given
    return find(context.find_root().params.get("directory") or Path())


def open_run(context: click.Context, run: str) -> "tuple[Workspace, Repository, str]":
    """Return the workspace, its store, and the full id of a run. Raises as `workspace`, `find_id`."""
    own = workspace(context)
    repo = own.open_repository()
    return own, repo, find_id(repo, run, "run")


def find_runs(repo: "Repository", given: str) -> list[str]:
    """Return the id of a run, or the ids of a sweep's runs that have begun and are not removed.

    Raises NotFound, AmbiguousId.
    """
    from m5ws.attempts import sweeps
    from m5ws.repository.references import ids

    kind, found_id = ids.resolve(repo, given, ("run", "sweep"))
    return [found_id] if kind == "run" else sweeps.list_begun(repo, found_id)


def find_id(repo: "Repository", given: str, kind: Kind) -> str:
    """Return the full id of a snapshot or run. Raises NotFound, AmbiguousId."""
    from m5ws.repository.references import ids

    return ids.resolve(repo, given, (kind,))[1]


class Id(click.ParamType[str]):
    """A snapshot or sweep by a unique prefix of its id, or a run by that or its name.

    The value stays text until an operation resolves it.
    """

    name = "id"

    def __init__(self, kinds: tuple[Kind, ...] = _BOTH) -> None:
        self.kinds = kinds

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        runs: list[str] = []
        with suppress(Exception):
            runs = [folder.name for folder in (workspace(ctx).home / "runs").iterdir() if "run" in self.kinds]
        return [CompletionItem(run) for run in sorted(runs) if run.startswith(incomplete.lower())]


class Text(click.ParamType[str]):
    """Text that can be stored. Invalid UTF-8 from a terminal, which Python reads as lone surrogates, is refused."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("not valid UTF-8", param, ctx)
        return value
