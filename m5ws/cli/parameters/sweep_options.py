"""Options of `m5ws run` for sweeps, and the options that cannot be combined with them."""

from typing import TypedDict

import click

from m5ws.cli.parameters import names
from m5ws.cli.parameters.grouped import grouped

options = grouped(
    click.option(
        "--sweep",
        "sweep",
        multiple=True,
        type=names.Text(),
        metavar="KEY=VALUES",
        help="Start a run for each value of KEY; may be repeated.",
    ),
    click.option(
        "--parallel",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --sweep, or --resume of a sweep: number of runs at the same time (default: 1).",
    ),
)


class SweepArguments(TypedDict):
    """The values of `options`."""

    sweep: tuple[str, ...]
    parallel: int | None
