"""`m5ws demo`."""

import shlex
from pathlib import Path

import click

from m5ws.cli.terminal import output


@click.command("demo")
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Train on this text file or folder. [default: the sources of Python's standard library]",
)
@click.pass_context
def command(context: click.Context, directory: Path | None, text: Path | None) -> None:
    """Train, reproduce and change a small GPT.

    The demo works in DIRECTORY, which must not exist (default: m5ws-demo). It prints each command before it runs it,
    so that you can repeat them by hand. It uses a GPU if there is one.

    \b
    Example:
      m5ws demo --text ~/books
    """
    from m5ws.projects import demo

    parent: Path = context.find_root().params["directory"]
    root = (parent / directory if directory else demo.free_directory(parent)).absolute()
    demo.execute(demo.plan(root, text), root, output.echo)
    output.echo("", f"To see the runs in MLflow: m5ws -C {shlex.quote(str(root))} ui")
