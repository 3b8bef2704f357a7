"""Arguments that name a thing, with their shell completion: snapshots, runs, templates.

Completion must never break a command line: where there is no workspace or store it offers nothing.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.shell_completion import CompletionItem

from m5ws.errors import M5Error
from m5ws.workspace import Workspace, find

if TYPE_CHECKING:
    from m5ws.repository.repository import Repository

Kind = Literal["snapshot", "run"]
_BOTH: tuple[Kind, ...] = ("snapshot", "run")


def workspace(context: click.Context) -> Workspace:
    """Return the workspace that `-C` or the current directory lies in. Raises NotFound, ConfigError."""
    return find(context.find_root().params.get("directory") or Path())


def settled(here: Workspace, *, create: bool = False) -> "Repository":
    """Open the store, with what runs that ended on this machine still had to say delivered. Raises NotFound."""
    from m5ws.runs import recovery

    repo = here.repository(create=create)
    recovery.deliver(repo, here.home, here.kept)
    return repo


def found(repo: "Repository", given: str, kind: Kind) -> str:
    """Return the id of the one snapshot, or run, that `given` stands for. Raises NotFound, AmbiguousId."""
    from m5ws.repository import ids

    return ids.resolve(repo, given, (kind,))[1]


class Id(click.ParamType[str]):
    """A snapshot or run, by a unique prefix of its id; the value stays text until an operation resolves it."""

    name = "id"

    def __init__(self, kinds: tuple[Kind, ...] = _BOTH) -> None:
        self.kinds = kinds

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from m5ws.repository import runs, snapshots

        try:
            repo = workspace(ctx).repository()
            items = []
            if "run" in self.kinds:
                records = sorted((runs.load(repo, name) for name in runs.ids(repo)), key=lambda run: -run.created_s)
                items += [CompletionItem(run.id, help=f"run {run.name or run.purpose}") for run in records]
            if "snapshot" in self.kinds:
                items += [CompletionItem(name[:12], help="snapshot") for name in snapshots.ids(repo)]
        except M5Error:
            return []
        return [item for item in items if item.value.startswith(incomplete.lower())]


class CheckpointName(click.ParamType[str]):
    """A checkpoint, as `checkpoints.resolve` reads it; runs are completed, and behind an @ their steps."""

    name = "checkpoint"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from m5ws.checkpoints import resolve

        prefix, at, step = incomplete.partition("@")
        if not at:
            return Id(("run",)).shell_complete(ctx, param, incomplete)
        try:
            repo = workspace(ctx).repository()
            steps = resolve.known(repo, found(repo, prefix, "run"))
        except M5Error:
            return []
        return [CompletionItem(f"{prefix}@{name}") for name in steps if name.startswith(step)]


class Text(click.ParamType[str]):
    """Text that can be stored: a terminal hands over bytes that are not UTF-8 as lone surrogates."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("it is not valid UTF-8", param, ctx)
        return value


class Template(click.ParamType[str]):
    """The name of a template of `m5ws init`."""

    name = "template"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from m5ws.projects import init

        return [CompletionItem(name) for name in init.templates() if name.startswith(incomplete)]
