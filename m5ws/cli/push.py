"""`m5ws push`."""

import click

from m5ws.cli.parameters import names, transfer


@click.command("push")
@transfer.parameters(
    names.Id(),
    "--to",
    store="A directory, or s3://bucket/prefix; made if new.",
    everything="Every snapshot and run of this workspace's store.",
)
@click.pass_context
def command(
    context: click.Context, ids: tuple[str, ...], url: str, everything: bool, dry_run: bool, as_json: bool
) -> None:
    """Copy snapshots and runs into another store.

    With each goes all that it needs; what the other store has is not sent again, and a copy that was cut short goes
    on where it stopped. Every byte is checked on the way.

    \b
    Examples:
      m5ws push 7c1d --to s3://team-training/m5ws
      m5ws push --all --to /mnt/backup/m5ws
    """
    here = names.workspace(context)
    source = names.settled(here)
    wanted = transfer.chosen(source, ids, everything)
    target = here.repository_at(url, create=not dry_run, imagined=dry_run, form=source.alike)
    return transfer.copy(source, target, wanted, dry_run, as_json)
