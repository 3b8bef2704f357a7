"""Commands that end in another command: after `--`, or from the first word that is neither an option nor an id.

click alone would take the first word for the command's own optional argument.
"""

import re
from typing import cast

import click

from m5ws.errors import UsageError

_KEY = "m5ws.script"
_ID = re.compile("[0-9a-fA-F]+")
"""A snapshot's id, or its begin. Any other word begins a command."""


class ScriptCommand(click.Command):
    """A command that keeps the script and its arguments for `script`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, words = self._split(ctx, args)
        ctx.meta[_KEY] = tuple(words)
        try:
            return super().parse_args(ctx, own)
        except click.NoSuchOption as error:
            if any(error.option_name in each.opts for each in ctx.find_root().command.params):
                hint = f"It goes before the command: m5ws {error.option_name} {self.name} …"
                raise UsageError(error.format_message(), hint=hint) from error
            scripts = [word for word in (*words, *args) if word.endswith(".py")]
            if not scripts:
                raise
            hint = f"Options of the script go after the script: m5ws {self.name} -- {scripts[0]} {error.option_name} …"
            raise UsageError(error.format_message(), hint=hint) from error

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]

    def _split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """Return the command's own words, and the script's words."""
        if "--" in args:
            return args[: args.index("--")], args[args.index("--") + 1 :]
        # A completion has half a command line. The first words of `fork` and `sweep` are their own.
        has_own = any(each.required for each in self.params if isinstance(each, click.Argument))
        position = None if ctx.resilient_parsing or has_own else self._first_word(ctx, args)
        if position is not None and not _ID.fullmatch(args[position]):
            return args[:position], args[position:]
        return args, []

    def _first_word(self, ctx: click.Context, args: list[str]) -> int | None:
        """Return the place of the first word that is neither an option nor an option's value."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            values, rest, _ = parser.parse_args(list(args))
        except click.UsageError:
            return None
        # The parser has taken the first word for the optional argument.
        word = next((values[each.name] for each in self.params if isinstance(each, click.Argument)), None)
        return len(args) - len(rest) - 1 if isinstance(word, str) else None


def script(context: click.Context) -> tuple[str, ...]:
    """Return the script and its arguments; empty if there are none."""
    return cast(tuple[str, ...], context.meta.get(_KEY, ()))
