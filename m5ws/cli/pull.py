"""`m5ws pull`."""

import click

from m5ws.cli.parameters import names, transfer


@click.command("pull")
@transfer.parameters(
    click.STRING,
    "--from",
    store="A directory, or s3://bucket/prefix.",
    everything="Every snapshot and run of that store.",
)
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
    wanted = transfer.chosen(source, ids, everything)
    target = here.repository(create=not dry_run, imagined=dry_run, form=source.alike)
    return transfer.copy(source, target, wanted, dry_run, as_json)
