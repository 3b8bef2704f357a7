"""Commands that end in `-- COMMAND …`. Everything after `--` belongs to the script.

click alone would take the first word for the command's own optional argument.
"""

from typing import cast

import click

_KEY = "m5ws.script"


class ScriptCommand(click.Command):
    """A command that keeps the arguments after `--` for `script`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        ctx.meta[_KEY] = tuple(args[split + 1 :])
        return super().parse_args(ctx, args[:split])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def script(context: click.Context) -> tuple[str, ...]:
    """Return the arguments after `--`; empty if there are none."""
    return cast(tuple[str, ...], context.meta.get(_KEY, ()))
