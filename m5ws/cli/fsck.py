"""`m5ws fsck`."""

import click

from m5ws.cli import names, output, progress

DAMAGED = 1


@click.command("fsck")
@output.json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Read everything in the store and name what is damaged.

    Every digest and every reference is checked; for each damage, the snapshots and runs that it harms are
    named. Exit status: 0 if all is well, 1 if something is damaged.

    \b
    Example:
      m5ws fsck
    """
    from m5ws.repository import fsck

    # What is checked is the store, not the copies of it that this machine has.
    repo = names.workspace(context).repository(near=False)
    with progress.Bar() as bar:
        report = fsck.check(repo, bar)
    if as_json:
        output.print_json(report)
    else:
        for damage in report.damage:
            click.echo(f"{damage.kind}: {damage.key}: {damage.detail}")
            for harmed in damage.harms:
                click.echo(f"  harms {harmed}")
        read = f"{report.objects:,} objects, {output.size(report.size_bytes)}"
        held = f"{report.snapshots} snapshots and {report.runs} runs"
        found = "all are as they were written" if report.clean else f"{len(report.damage)} damaged"
        click.echo(f"{read} for {held}: {found}")
    context.exit(0 if report.clean else DAMAGED)
