"""`m5ws pull`."""

import click

from m5ws.cli import names, output
from m5ws.cli.push import chosen, transfer


@click.command("pull")
@click.argument("ids", metavar="[ID]...", type=click.STRING, nargs=-1)
@click.option("--from", "url", required=True, metavar="STORE", help="A directory, or s3://bucket/prefix.")
@click.option("--all", "everything", is_flag=True, help="Every snapshot and run of that store.")
@click.option("--dry-run", is_flag=True, help="Copy nothing; say what would be.")
@output.json_option
@click.pass_context
def command(
    context: click.Context, ids: tuple[str, ...], url: str, everything: bool, dry_run: bool, as_json: bool
) -> None:
    """Copy snapshots and runs from another store into this workspace's.

    With each comes all that it needs; what is here is not read again, and a copy that was cut short goes on where it
    stopped. Every byte is checked on the way.

    \b
    Example:
      m5ws pull 7c1d --from s3://team-training/m5ws
    """
    here = names.workspace(context)
    source = here.repository_at(url)
    wanted = chosen(source, ids, everything)
    target = here.repository(create=not dry_run, imagined=dry_run)
    return transfer(source, target, wanted, dry_run, as_json)
