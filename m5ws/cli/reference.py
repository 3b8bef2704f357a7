"""The page docs/reference/commands.md, from the commands themselves: `python -m m5ws.cli.reference`.

A test compares the page with this, so that help and documentation cannot differ.
"""

from typing import Any

import click

from m5ws.cli import COMMANDS, cli

_WIDTH = 100
_HEAD = """\
# Commands

<!-- Made by `python -m m5ws.cli.reference`; a test compares it. Change the help texts, not this page. -->

Results go to stdout, progress and messages to stderr. With `--json`, stdout is one JSON document and nothing
else. Wherever an id is asked for, a unique prefix of it will do. [Exit codes](exit-codes.md) and
[m5ws.toml](configuration.md) have pages of their own.
"""


def page() -> str:
    """Return the whole page."""
    settings: dict[str, Any] = {**cli.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    root = click.Context(cli, info_name="m5ws", **settings)
    sections = [_HEAD, _section("m5ws", cli.get_help(root))]
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        sections.append(_section(f"m5ws {name}", command.get_help(context)))
    return "\n".join(sections)


def _section(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    click.echo(page(), nl=False)
