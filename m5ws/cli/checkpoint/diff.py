"""`m5ws checkpoint diff`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.checkpoints.diff import CheckpointDiff, TensorChange
    from m5ws.records.verdict import ElementDifferences

_DIFFERENT = 1


@click.command("diff")
@click.argument("a", type=names.Id(("run",)))
@click.argument("b", type=names.Id(("run",)))
@click.option("--brief", is_flag=True, help="List the differences without reading tensors.")
@output.json_option
@click.pass_context
def command(context: click.Context, a: str, b: str, brief: bool, as_json: bool) -> int:
    """Show the tensors and state that differ, and by how much.

    Bits are compared. For each tensor that differs: the number of elements, the largest absolute difference, the
    largest relative to the larger value, and the first element. Parts with equal digests are not read. Tensors are
    matched by name, for any number of ranks; those of DeepSpeed by file and path.

    Exit status: 0 all is equal, 1 something differs.

    \b
    Example:
      m5ws checkpoint diff 7c1d@20000 9a44@20000
    """
    from m5ws.checkpoints import diff, resolve

    repo = names.workspace(context).open_repository()
    left, right = (resolve.resolve(repo, text, counting=False) for text in (a, b))
    with progress.Bar() as bar:
        difference = diff.compare(repo, left, right, None if brief else _compare, bar)
    if as_json:
        output.print_json({"equal": difference.equal, **cast(dict[str, object], output.plain(difference))})
    else:
        output.echo(*_lines(difference))
    return 0 if difference.equal else _DIFFERENT


def _compare(a: bytearray, b: bytearray, dtype: str, first: int) -> "ElementDifferences":
    """Compare elements with torch, which is imported only if there are elements to compare."""
    from m5ws import workspace

    return workspace.compare_bits()(a, b, dtype, first)


def _lines(difference: "CheckpointDiff") -> Iterator[output.Line]:
    for change in difference.tensors:
        yield from _tensor(change)
    where = None
    for leaf in difference.state:
        if leaf.where != where:
            where = leaf.where
            yield (output.StyledText(f"state of {where}", bold=True),)
        yield f"  {leaf.path or '(all)'}: {_side(leaf.a)} → {_side(leaf.b)}"
    for file in difference.files:
        yield f"file {file.name}: {_side(file.a)} → {_side(file.b)}"
    yield from (f"note: {note}" for note in difference.notes)
    if difference.equal:
        yield f"no difference: {difference.tensors_equal:,} tensors and all state are equal, bit for bit"
    else:
        unread = output.size(difference.bytes_unread)
        read = f"{output.size(difference.bytes_read)} read of each, {unread} equal by their digests"
        yield f"{len(difference.tensors):,} tensors differ, {difference.tensors_equal:,} are equal; {read}"


def _side(value: str | None) -> str:
    return "(none)" if value is None else value


def _tensor(change: "TensorChange") -> Iterator[output.Line]:
    yield output.StyledText(change.name, bold=True), f"  {change.a or change.b}"
    if change.kind in {"type", "shape"}:
        yield f"  {change.kind}: {change.a} → {change.b}"
    elif change.elements is None:
        yield "  bits differ" if change.kind == "bits" else f"  {change.kind}"
    else:
        yield f"  {_elements(change.elements)}"
        place = f"first at {list(change.first_index)}: " if change.first_index else ""
        yield f"  {place}{change.elements.first_a} → {change.elements.first_b}"


def _elements(elements: "ElementDifferences") -> str:
    parts = [f"{elements.differing:,} of {elements.compared:,} elements"]
    if elements.max_absolute is not None and elements.max_relative is not None:
        parts.append(
            f"by at most {output.number(elements.max_absolute)}, relatively {output.number(elements.max_relative)}"
        )
    counted = {
        "in the sign of zero": elements.zero_signs,
        "in the bits of NaN": elements.nans,
        "NaN in one": elements.nan_in_one,
    }
    parts += [f"{count:,} {kind}" for kind, count in counted.items() if count]
    if elements.same_values:
        parts.append("the values are the same")
    return ", ".join(parts)
