"""`m5ws push`."""

import click

from m5ws.cli.parameters import names, transfer


@click.command("push")
@transfer.parameters(
    names.Id(),
    "--to",
    store="A directory, or s3://bucket/prefix; created if missing.",
    everything="Copy every snapshot and run of this workspace's store.",
)
def command(
    context: click.Context, ids: tuple[str, ...], url: str, everything: bool, dry_run: bool, as_json: bool
) -> None:
    """Copy snapshots and runs to another store.

    Everything that they need is copied too. Existing objects are not sent again. To continue an interrupted copy,
    repeat the command. Every byte is verified.

    \b
    Examples:
      m5ws push 7c1d --to s3://team-training/m5ws
      m5ws push --all --to /mnt/backup/m5ws
    """
    workspace = names.workspace(context)
    source = workspace.open_repository()
    wanted = transfer.select_ids(source, ids, everything)
    target = workspace.repository(url, create=not dry_run, for_dry_run=dry_run, store_format=source.compatible_format)
    return transfer.copy(source, target, wanted, everything=everything, dry_run=dry_run, as_json=as_json)
