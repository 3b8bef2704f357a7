"""`m5ws demo`."""

import shlex
from pathlib import Path

import click

from m5ws.cli.terminal import output


@click.command("demo")
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option(
    "--template",
    "templates",
    multiple=True,
    metavar="NAME",
    help="Use this template only; may be repeated. [default: gpt-fsdp, then gpt-deepspeed]",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Train on this text file or folder. [default: the sources of Python's standard library]",
)
@click.option("--store", metavar="STORE", help="Store of the demo: a directory, or s3://bucket/prefix.")
@click.option(
    "--nproc", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Number of processes."
)
@click.option("--dry-run", is_flag=True, help="Print the commands, and run nothing.")
@click.pass_context
def command(
    context: click.Context,
    directory: Path | None,
    templates: tuple[str, ...],
    text: Path | None,
    store: str | None,
    nproc: int,
    dry_run: bool,
) -> None:
    """Snapshot, train and reproduce a small GPT.

    The demo works in DIRECTORY, which must not exist (default: m5ws-demo). It prints each command before it runs it,
    so that you can repeat them by hand. It uses a GPU if there is one.

    \b
    Example:
      m5ws demo --text ~/books
    """
    from m5ws.projects import demo

    parent: Path = context.find_root().params["directory"]
    plan = demo.plan(
        demo.DemoOptions(
            directory=parent / directory if directory else demo.free_directory(parent),
            templates=templates or demo.TEMPLATES,
            text=text,
            nproc=nproc,
            store=store,
        )
    )
    if dry_run:
        return output.echo("\n".join(plan.lines()))
    workspaces = demo.execute(plan, output.echo)
    output.echo("\nDone. The runs in MLflow:")
    for place in workspaces:
        output.echo(f"  m5ws -C {shlex.quote(str(place))} ui")
    return None
