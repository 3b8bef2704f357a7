"""`m5ws checkpoint show`."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from m5ws.checkpoints.listing import CheckpointView

_SHOWN = 24
"""Number of values of one place that are shown without --state."""


@click.command("show")
@click.argument("checkpoint", metavar="CHECKPOINT", type=names.Id(("run",)))
@click.option("--state", "everything", is_flag=True, help="List all values that are not tensors.")
@output.json_command
def command(context: click.Context, checkpoint: str, everything: bool, as_json: bool) -> None:
    """Show a checkpoint: its origin, tensors and state.

    CHECKPOINT is RUN@STEP, or RUN for its newest. Other state than tensors is shown value by value. Long values, such
    as random number generators, are shown as the digest in the ledger.

    \b
    Example:
      m5ws checkpoint show 7c1d@20000
    """
    from m5ws.checkpoints import listing, resolve

    repo = names.workspace(context).open_repository()
    view = listing.view(repo, resolve.resolve(repo, checkpoint, counting=False))
    if as_json:
        return output.print_json(view)
    output.echo("\n".join(_lines(view, everything)))
    return None


def _lines(view: "CheckpointView", everything: bool) -> Iterator[str]:
    yield f"checkpoint {view.run}@{view.name}"
    fields = {
        "run": view.run,
        "step": str(view.step),
        "attempt": str(view.attempt),
        "made": output.moment(view.when_s),
        "snapshot": view.snapshot,
        "record": view.digest,
        "content": view.content,
        "format": f"{view.format}, {view.world} ranks",
        "size": output.size(view.size_bytes),
        "kept": "for ever" if view.kept else None,
        "counts": None if view.counts else "no: a newer attempt had begun when it was published",
    }
    yield output.fields(fields, "  ")
    if view.tensors:
        rows = [
            (row.name, row.dtype, "×".join(map(str, row.shape)) or "-", str(row.shards), output.size(row.size_bytes))
            for row in view.tensors
        ]
        yield f"\n{output.table(('TENSOR', 'TYPE', 'SHAPE', 'SHARDS', 'SIZE'), rows)}"
    for where, group in groupby(view.state, key=lambda leaf: leaf.where):
        values = {leaf.path: leaf.value for leaf in group}
        shown = dict(list(values.items())[: None if everything else _SHOWN])
        yield f"\nstate of {where}:"
        yield output.fields(shown, "  ")
        if len(shown) < len(values):
            yield f"  … {len(values) - len(shown):,} more (--state lists them)"
    if view.ledger:
        heads = {f"rank {rank}": head for rank, head in view.ledger.items()}
        yield f"\nledger after this step:\n{output.fields(heads, '  ')}"
