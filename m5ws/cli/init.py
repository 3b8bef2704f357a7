"""`m5ws init`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.config.settings import StoreSettings
    from m5ws.projects.init import Tables


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--template", metavar="NAME", help="Copy the files of this template.")
@click.option("--store", metavar="STORE", help="A directory, relative to the workspace, or s3://bucket/prefix.")
@click.option("--region", metavar="NAME", help="Region of the S3 bucket.")
@click.option("--endpoint-url", metavar="URL", help="S3 server, if it is not AWS.")
@click.option("--team", metavar="PATH", help="Profile of a team, absolute or relative to the workspace.")
@click.option("--tracking-uri", metavar="URI", help="Server or store of MLflow.")
@click.option("--list", "list_only", is_flag=True, help="List the templates, and do nothing.")
@output.json_command
def command(
    context: click.Context,
    directory: Path | None,
    template: str | None,
    store: str | None,
    region: str | None,
    endpoint_url: str | None,
    team: str | None,
    tracking_uri: str | None,
    list_only: bool,
    as_json: bool,
) -> None:
    """Create a workspace: m5ws.toml, ignore rules, a template's files.

    DIRECTORY is created if it does not exist (default: the current directory). If files that `init` writes exist, they
    are listed and nothing is changed. An existing store is used; a missing store is created. If the store cannot be
    used, nothing is written.

    The profile of a team has the [store], [mlflow] and [clusters] that m5ws.toml extends. --team with --store creates
    the profile. If the profile exists, --team alone uses it.

    \b
    Examples:
      m5ws init --template gpt-fsdp my-model
      m5ws init --store s3://team-training/m5ws --region eu-west-1
      m5ws init --team /shared/team.toml --store s3://team-training/m5ws
      m5ws init --team /shared/team.toml my-model
    """
    from m5ws import workspace
    from m5ws.projects import init

    if list_only:
        known = init.templates()
        return output.print_json(known) if as_json else output.echo("\n".join(known))
    root = (context.find_root().params["directory"] / (directory or "")).absolute()
    given = {"url": store, "region": region, "endpoint_url": endpoint_url}
    options = {"store": given, "mlflow": {"tracking_uri": tracking_uri}}
    chosen = {name: {k: v for k, v in table.items() if v is not None} for name, table in options.items()}
    tables = {name: table for name, table in chosen.items() if table}
    plan = init.plan(root, template, tables, team)
    _prepare_store(root, team, tables)
    init.apply(plan)
    workspace.find(root).repository(create=True)
    written = [file.path for file in plan.files]
    if as_json:
        return output.print_json({"workspace": str(root), "files": written, "kept": plan.kept})
    output.echo(f"{root} is a workspace: {', '.join(written)}")
    for path in plan.kept:
        output.print_note(f"note: existing {path} was not changed; the template's rules were not added")
    if team in written:
        output.print_note(f"hint: add clusters to {team}. Other members run `m5ws init --team {team}`.")
    if not init.in_git(root):
        output.print_note("hint: run `git init` here, so that snapshots record their commit.")
    else:
        output.print_note("hint: commit m5ws.toml after your changes, so that every checkout has the same settings.")
    move = "" if directory is None else f"cd {shlex.quote(str(directory))}; "
    begin = "python prepare.py; m5ws run" if "prepare.py" in written else "m5ws run SCRIPT"
    output.print_note(f"next: {move}{begin}")
    return None


def _prepare_store(root: Path, team: str | None, tables: "Tables") -> None:
    """Create or join the named store, or the store of the profile. Raises UsageError for options that do not fit."""
    import msgspec

    from m5ws import secret_gate
    from m5ws.config import reader
    from m5ws.config.settings import StoreSettings

    store = tables.get("store", {})
    url = store.get("url", "")
    secret_gate.refuse(tables, "the settings")
    if store.keys() - {"url"} and "://" not in url:
        raise UsageError("--region and --endpoint-url require an S3 store: --store s3://bucket/prefix")
    if team is not None and (root / team).is_file():
        if tables:
            raise UsageError(f"the profile {root / team} exists already", hint="Use --team alone, or edit the profile.")
        _try_store(root, msgspec.convert(reader.read_profile(root / team).get("store", {}), StoreSettings))
    elif team is not None and reader.is_private(url):
        need = "an absolute path or s3://bucket/prefix"
        raise UsageError(f"there is no profile {root / team}, and a new profile requires --store with {need}")
    elif store:
        _try_store(root, msgspec.convert(store, StoreSettings))


def _try_store(root: Path, settings: "StoreSettings") -> None:
    """Create or join the store of a workspace at `root`. Raises any error of the store."""
    from m5ws.repository.repository import Repository
    from m5ws.store import open_store

    url = settings.url
    Repository.create(open_store(url, settings) if "://" in url else open_store(str(root / url)))
