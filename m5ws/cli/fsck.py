"""`m5ws fsck`."""

from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.repository.fsck.damage import Report
    from m5ws.snapshot.rehash import Rehashed

DAMAGED = 1


@click.command("fsck")
@click.option("--read-data", is_flag=True, help="Read all bytes, also of objects that the server vouches for.")
@output.json_option
@click.pass_context
def command(context: click.Context, read_data: bool, as_json: bool) -> None:
    """Check everything in the store and name what is damaged.

    Every digest and every reference is checked; for each damage, the snapshots and runs that it harms are
    named. In a directory everything is read. In S3, an object is not read whose server keeps a checksum of it
    and whose size is right: `--read-data` reads it too.

    The workspace's files are hashed again, too: one whose content changed and whose time stamps did not is stale,
    and a snapshot would take it for unchanged. Exit status: 0 if all is well, 1 if something is damaged or stale,
    3 if the store could not be checked to its end.

    \b
    Examples:
      m5ws fsck
      m5ws -q fsck --read-data --json
    """
    from m5ws.repository.fsck import fsck
    from m5ws.snapshot import rehash

    here = names.workspace(context)
    # What is checked is the store, not the copies of it that this machine has.
    repo = here.repository(near=False)
    with progress.Bar() as bar:
        report = fsck.check(repo, bar, read_data=read_data)
        files = rehash.read(repo.objects, here.index_path, bar)
    if as_json:
        output.print_json({**msgspec.structs.asdict(report), "workspace": files})
    else:
        _print(report)
        _print_files(files)
    context.exit(DAMAGED if files.stale or not report.clean else 0)


def _print_files(files: "Rehashed") -> None:
    for path in files.stale:
        output.echo(f"stale: {path}: its content changed, its time stamps did not; `m5ws snapshot --rehash` reads it")
    if files.files:
        whole = f"{len(files.stale)} stale" if files.stale else "all have the content that a snapshot takes them for"
        output.echo(f"{files.files:,} files of the workspace, {output.size(files.size_bytes)}: {whole}")


def _print(report: "Report") -> None:
    for damage in report.damage:
        output.echo(f"{damage.kind}: {damage.key}: {damage.detail}")
        for harmed in damage.harms:
            output.echo(f"  harms {harmed}")
    if report.distrusted:
        output.echo("The server vouches for something that is damaged, so its word was taken for nothing.")
    for vouched in report.vouched:
        by = f"{vouched.checksum}, which is the name" if vouched.named else vouched.checksum
        output.echo(f"not read: {_amount(vouched.objects, vouched.size_bytes)}, for which the server vouches ({by})")
    if report.vouched:
        output.echo(f"read: {_amount(report.read_objects, report.read_bytes)}")
    held = f"{report.snapshots} snapshots and {report.runs} runs"
    whole = "no damage was found" if report.vouched else "all are as they were written"
    found = whole if report.clean else f"{len(report.damage)} damaged"
    output.echo(f"{_amount(report.objects, report.size_bytes)} for {held}: {found}")


def _amount(objects: int, size_bytes: int) -> str:
    return f"{objects:,} objects, {output.size(size_bytes)}"
