"""A click group that has its commands in a table, and imports a command only to run it.

`--help` prints the table's texts, so it imports no command. A test keeps these texts equal to the texts of the
commands.
"""

import importlib
from collections.abc import Mapping
from typing import cast

import click

_WORDS = "m5ws.words"


def typed_words(context: click.Context) -> tuple[str, ...]:
    """Return the typed command: the name of the command, and all words after it."""
    return cast("tuple[str, ...]", context.find_root().meta[_WORDS])


class LazyGroup(click.Group):
    """Commands by name. A command is the object `command` of the module of that name in `package`."""

    def __init__(self, *, commands_by_name: Mapping[str, str], package: str, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.commands_by_name = commands_by_name
        # click suggests one of these names for an unknown name.
        self.commands = dict.fromkeys(commands_by_name)  # type: ignore[assignment]
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
        ctx.meta[_WORDS] = tuple(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands_by_name.items()))
