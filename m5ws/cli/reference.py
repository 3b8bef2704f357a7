"""Build the page docs/reference/commands.md from the commands: `python -m m5ws.cli.reference`.

A test compares the page with this output, so that help and documentation cannot differ.
"""

from collections.abc import Iterator
from typing import Any

import click

from m5ws.cli import cli

_WIDTH = 100
_HEAD = """\
# Commands

<!-- Made by `python -m m5ws.cli.reference`; a test compares it. Change the help texts, not this page. -->

Results go to stdout, progress and messages to stderr. With `--json`, stdout is one JSON document and nothing
else. A unique prefix can stand for an id, and so can the name of a run. See also [exit codes](exit-codes.md) and
[m5ws.toml](configuration.md).
"""


def page() -> str:
    """Return the whole page."""
    sections = [_section(name, command.get_help(context)) for name, command, context in commands()]
    return "\n".join([_HEAD, *sections])


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield the name, the command and its context for each command and group, in the order of their tables."""
    settings: dict[str, Any] = {**cli.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    root = click.Context(cli, info_name="m5ws", **settings)
    yield "m5ws", cli, root
    yield from _below(root, cli)


def _below(above: click.Context, group: click.Group) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=above)
        yield context.command_path, command, context
        if isinstance(command, click.Group):
            yield from _below(context, command)


def _section(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    click.echo(page(), nl=False)
