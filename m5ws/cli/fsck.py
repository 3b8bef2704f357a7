"""`m5ws fsck`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.repository.fsck.damage import FsckReport

DAMAGED = 1


@click.command("fsck")
@click.option("--read-data", is_flag=True, help="Read all objects, also objects with a checksum from the server.")
@output.json_command
def command(context: click.Context, read_data: bool, as_json: bool) -> None:
    """Check the whole store and list the damage.

    Every digest and every reference is checked. For each damaged object, the affected snapshots and runs are listed.
    In a directory, all objects are read. In S3, an object is not read if the server has a checksum of it and its size
    is right; --read-data reads it too.

    Exit status: 0 no damage, 1 something is damaged, 3 the check could not be completed.

    \b
    Examples:
      m5ws fsck
      m5ws -q fsck --read-data --json
    """
    from m5ws.repository.fsck import fsck

    # Check the store itself, not this machine's cache of it.
    repo = names.workspace(context).repository(near=False)
    with progress.Bar() as bar:
        report = fsck.check(repo, bar, read_data=read_data)
    if as_json:
        output.print_json(report)
    else:
        _print(report)
    context.exit(0 if report.clean else DAMAGED)


def _print(report: "FsckReport") -> None:
    for damage in report.damage:
        output.echo(f"{damage.kind}: {damage.key}: {damage.detail}")
        for affected in damage.harms:
            output.echo(f"  affects {affected}")
    if report.distrusted:
        output.echo("The server has a wrong checksum, so all objects were read.")
    for vouched in report.vouched:
        amount = _amount(vouched.objects, vouched.size_bytes)
        output.echo(f"not read: {amount}, checksum of the server ({vouched.checksum})")
    if report.vouched:
        output.echo(f"read: {_amount(report.read_objects, report.read_bytes)}")
    held = f"{report.snapshots} snapshots and {report.runs} runs"
    result = "no damage" if report.clean else f"{len(report.damage)} damaged"
    output.echo(f"{_amount(report.objects, report.size_bytes)} for {held}: {result}")


def _amount(objects: int, size_bytes: int) -> str:
    return f"{objects:,} objects, {output.size(size_bytes)}"
