"""`m5ws checkpoint diff`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from m5ws.checkpoints.diff import CheckpointDiff

_DIFFERENT = 1


@click.command("diff")
@click.argument("a", type=names.Id(("run",)))
@click.argument("b", type=names.Id(("run",)))
@output.json_command
def command(context: click.Context, a: str, b: str, as_json: bool) -> int:
    """Show the tensors and state that differ.

    Tensors are compared by their fingerprints, which depend on every bit and not on the number of ranks. No tensor is
    read.

    Exit status: 0 all is equal, 1 something differs.

    \b
    Example:
      m5ws checkpoint diff 7c1d@20000 9a44@20000
    """
    from m5ws.checkpoints import diff, resolve

    repo = names.workspace(context).open_repository()
    left, right = (resolve.resolve(repo, text, counting=False) for text in (a, b))
    difference = diff.compare(repo, left, right)
    if as_json:
        output.print_json({"equal": difference.equal, **cast(dict[str, object], output.plain(difference))})
    else:
        output.echo(*_lines(difference))
    return 0 if difference.equal else _DIFFERENT


def _lines(difference: "CheckpointDiff") -> Iterator[output.Line]:
    for change in difference.tensors:
        yield (output.StyledText(change.name, bold=True),)
        yield f"  {_side(change.a)} → {_side(change.b)}"
    where = None
    for leaf in difference.state:
        if leaf.where != where:
            where = leaf.where
            yield (output.StyledText(f"state of {where}", bold=True),)
        yield f"  {leaf.path or '(all)'}: {_side(leaf.a)} → {_side(leaf.b)}"
    yield from (f"note: {note}" for note in difference.notes)
    if difference.equal:
        yield f"no difference: {difference.tensors_equal:,} tensors and all state are equal, bit for bit"
    else:
        yield f"{len(difference.tensors):,} tensors differ, {difference.tensors_equal:,} are equal"


def _side(value: str | None) -> str:
    return "(none)" if value is None else value
