"""`m5ws init`."""

from pathlib import Path

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import UsageError


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--template", type=names.Template(), metavar="NAME", help="Start from a template's files.")
@click.option("--store", metavar="STORE", help="A directory, relative to the workspace, or s3://bucket/prefix.")
@click.option("--region", metavar="NAME", help="The home region of a store in S3.")
@click.option("--endpoint-url", metavar="URL", help="The S3 server, where it is not AWS.")
@click.option("--git", "with_git", is_flag=True, help="Make a git repository, with a first commit of the files.")
@click.option("--list", "list_only", is_flag=True, help="List the templates and do nothing.")
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    directory: Path | None,
    template: str | None,
    store: str | None,
    region: str | None,
    endpoint_url: str | None,
    with_git: bool,
    list_only: bool,
    as_json: bool,
) -> None:
    """Make a workspace: m5ws.toml, ignore rules, a template's files.

    DIRECTORY is made if it is not there; without one, the current directory becomes the workspace. If a
    file that would be written exists, all such files are listed and nothing is changed. A store that is
    there is joined, else it is made; a store that cannot be used is an error, and nothing is written.

    \b
    Examples:
      m5ws init --template gpt-fsdp --git my-model
      m5ws init --store s3://team-training/m5ws --region eu-west-1
    """
    from m5ws import workspace
    from m5ws.config.settings import StoreSettings
    from m5ws.projects import init

    if list_only:
        known = init.templates()
        return output.print_json(known) if as_json else output.echo("\n".join(known))
    root = (context.find_root().params["directory"] / (directory or "")).absolute()
    given = {"url": store, "region": region, "endpoint_url": endpoint_url}
    settings = {name: value for name, value in given.items() if value is not None}
    plan = init.plan(root, template, store=settings)
    if (region or endpoint_url) and "://" not in (store or ""):
        raise UsageError("--region and --endpoint-url are said of a store in S3: --store s3://bucket/prefix")
    if with_git and (root / ".git").exists():
        raise UsageError(f"{root} is a git repository already", hint="Leave --git out.")
    if store is not None:
        workspace.try_store(root, StoreSettings(url=store, region=region, endpoint_url=endpoint_url))
    init.apply(plan)
    workspace.find(root).repository(create=True)
    written = [file.path for file in plan.files]
    message = f"Start from {template}" if template else "Make a workspace"
    commit = workspace.make_repository(root, (*written, *plan.kept), message) if with_git else None
    if as_json:
        made = {"commit": commit} if commit is not None else {}
        return output.print_json({"workspace": str(root), "files": written, "kept": plan.kept, **made})
    output.echo(f"{root} is a workspace: {', '.join(written)}")
    for path in plan.kept:
        output.note(f"note: {path} stays as it is; the template's rules were not added")
    if not init.in_git(root):
        output.note("hint: `git init` here, and snapshots name the commit they stand on.")
    return None
