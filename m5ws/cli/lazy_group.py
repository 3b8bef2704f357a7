"""A click group that has its commands in a table, and imports a command only to run it.

`--help` prints the table's texts, so it imports no command. A test keeps these texts equal to those of the commands.
"""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import cast

import click


class LazyGroup(click.Group):
    """Commands by name. A command is the object `command` of the module of that name in `package`."""

    def __init__(self, *, commands_by_name: Mapping[str, str], package: str, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.commands_by_name = commands_by_name
        self.package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_by_name:
            return None
        module = importlib.import_module(f"{self.package}.{cmd_name}")
        return cast(click.Command, module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands_by_name and not name.startswith("-"):
            raise click.UsageError(f"unknown command {name!r}{_nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands_by_name.items()))


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
