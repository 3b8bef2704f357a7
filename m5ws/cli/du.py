"""`m5ws du`."""

from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.repository.usage import RunUsage


@click.command("du")
@output.limit_option("List the N runs with the most unique bytes; 0 lists all.")
@output.json_command
def command(context: click.Context, limit: int, as_json: bool) -> None:
    """List the bytes of runs.

    A run is counted with its replays. TOTAL is the size of all objects that they need: snapshots, checkpoints and
    output files. UNIQUE are the objects that no other run and no snapshot needs, SHARED the other objects. RECORDS are
    ledgers, verdicts and summaries. DATA are datasets that stay in their remotes. CROSSED are bytes that nodes read and
    wrote between two regions, as far as both are known. All records of the store are read.

    \b
    Example:
      m5ws du --limit 5
    """
    from m5ws.repository import usage

    repo = names.workspace(context).open_repository()
    with progress.Bar() as bar:
        usages = usage.measure(repo, bar)
    shown = usages.runs[: limit or None]
    if as_json:
        rows = [{**msgspec.structs.asdict(row), "shared_bytes": row.shared_bytes} for row in shown]
        whole = {"objects": usages.objects, "size_bytes": usages.size_bytes, "other_bytes": usages.other_bytes}
        return output.print_json({"runs": rows, "more": len(usages.runs) - len(shown), **whole})
    if shown:
        heads = ("RUN", "REPLAYS", "TOTAL", "UNIQUE", "SHARED", "RECORDS", "DATA", "CROSSED", "NAME")
        output.echo(output.table(heads, [_row(row) for row in shown]), "")
    if more := len(usages.runs) - len(shown):
        output.print_note(f"{more:,} runs with fewer unique bytes are not listed; `--limit 0` lists all")
    size, other = output.size(usages.size_bytes), output.size(usages.other_bytes)
    output.echo(f"{usages.objects:,} objects with {size}, of which {other} are needed by no run")
    return None


def _row(row: "RunUsage") -> tuple[str, ...]:
    sizes = (row.logical_bytes, row.unique_bytes, row.shared_bytes, row.record_bytes)
    far = map(output.size, (row.remote_bytes, row.crossed_bytes))
    return row.run, str(row.replays), *map(output.size, sizes), *far, row.problem or row.name or ""
