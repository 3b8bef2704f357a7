"""`m5ws init`."""

from pathlib import Path

import click

from m5ws.cli import names, output


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--template", type=names.Template(), metavar="NAME", help="Start from a template's files.")
@click.option("--list", "list_only", is_flag=True, help="List the templates and do nothing.")
@output.json_option
@click.pass_context
def command(
    context: click.Context, directory: Path | None, template: str | None, list_only: bool, as_json: bool
) -> None:
    """Make a workspace: m5ws.toml, ignore rules, a template's files.

    DIRECTORY is made if it is not there; without one, the current directory becomes the workspace. If a
    file that would be written exists, all such files are listed and nothing is changed.

    \b
    Example:
      m5ws init --template gpt-fsdp my-model
    """
    from m5ws import workspace
    from m5ws.operations import init

    if list_only:
        known = init.templates()
        return output.print_json(known) if as_json else click.echo("\n".join(known))
    root = (context.find_root().params["directory"] / (directory or "")).absolute()
    plan = init.plan(root, template)
    init.apply(plan)
    workspace.find(root).repository(create=True)
    written = [file.path for file in plan.files]
    if as_json:
        return output.print_json({"workspace": str(root), "files": written, "kept": plan.kept})
    click.echo(f"{root} is a workspace: {', '.join(written)}")
    for path in plan.kept:
        output.note(f"note: {path} stays as it is; the template's rules were not added")
    if not init.in_git(root):
        output.note("hint: `git init` here, and snapshots name the commit they stand on.")
    return None
