"""`m5ws pull`."""

import click

from m5ws.cli.parameters import names, transfer


@click.command("pull")
@transfer.parameters(
    click.STRING,
    "--from",
    store="A directory, or s3://bucket/prefix.",
    everything="Copy every snapshot and run of that store.",
)
def command(
    context: click.Context, ids: tuple[str, ...], url: str, everything: bool, dry_run: bool, as_json: bool
) -> None:
    """Copy snapshots and runs from another store to this workspace's store.

    Everything that they need is copied too. Existing objects are not read again. To continue an interrupted copy,
    repeat the command. Every byte is verified.

    \b
    Example:
      m5ws pull 7c1d --from s3://team-training/m5ws
    """
    workspace = names.workspace(context)
    source = workspace.repository(url)
    wanted = transfer.select_ids(source, ids, everything)
    target = workspace.repository(create=not dry_run, for_dry_run=dry_run, store_format=source.compatible_format)
    return transfer.copy(source, target, wanted, everything=everything, dry_run=dry_run, as_json=as_json)
