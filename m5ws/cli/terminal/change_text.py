"""Changes between two snapshots or runs, as lines for a terminal."""

from collections.abc import Sequence
from itertools import groupby

from m5ws.cli.terminal import output
from m5ws.records.verdict import Change
from m5ws.wording.changes import describe

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def lines(changes: Sequence[Change], *, brief: bool = False) -> list[output.Line]:
    """Return changes as lines, grouped by part. On a terminal, a diff is coloured."""
    if not changes:
        return ["no difference"]
    result: list[output.Line] = []
    for part, group in groupby(changes, key=lambda change: change.part):
        result.append((output.StyledText(part, bold=True),))
        for change in group:
            result.append(f"  {describe(change, with_part=False)}")
            if change.detail and "\n" in change.detail and not brief:
                result += [
                    ("    ", output.StyledText(line, _COLOURS.get(line[:1]))) for line in change.detail.splitlines()
                ]
    return result
