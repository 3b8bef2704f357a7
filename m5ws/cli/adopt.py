"""`m5ws adopt`."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.projects.adopt import AdoptionPlan


@click.command("adopt")
@click.argument("run", type=names.Id(("run",)))
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print the changes, and make none.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output.json_command
def command(context: click.Context, run: str, paths: tuple[Path, ...], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Pin files that a run read from elsewhere.

    Each PATH is a file that the run read, or a folder with such files; without PATH, all of them. A link to it is made
    in the workspace, and [data] or [tokenizer] in m5ws.toml names the link. The next snapshot pins the content. A file
    that has changed since the run read it is refused. The script must read the link instead of the old path.

    \b
    Examples:
      m5ws adopt 7c1d --dry-run
      m5ws adopt 7c1d /shared/tokenizer
    """
    from m5ws.projects import adopt

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    with progress.Bar() as bar:
        bar("comparing the files with the records of the run", 0, 0)
        planned = adopt.plan(repo, workspace.root, names.find_id(repo, run, "run"), paths)
    if not as_json:
        output.echo(_describe(planned))
    if not dry_run:
        if not yes:
            click.confirm("Make these links, and change m5ws.toml?", abort=True, err=True)
        adopt.apply(planned)
    if as_json:
        output.print_json({"plan": planned, "dry_run": dry_run})
    for adoption in planned.adoptions:
        output.print_note(f"the script reads {adoption.target}: let it read {adoption.name}")


def _describe(planned: "AdoptionPlan") -> str:
    rows = [
        (adoption.name, adoption.target, f"[{adoption.section}]", str(adoption.files), output.size(adoption.size_bytes))
        for adoption in planned.adoptions
    ]
    old, new = planned.old.splitlines(), planned.new.splitlines()
    changes = difflib.unified_diff(old, new, "m5ws.toml", "m5ws.toml", lineterm="", n=2)
    return "\n".join([output.table(("LINK", "TARGET", "SECTION", "FILES READ", "SIZE"), rows), "", *changes])
