"""Options of a launch. An option that is not given is None, and m5ws.toml decides."""

from typing import TypedDict, get_args

import click

from m5ws.cli.parameters import names
from m5ws.cli.parameters.grouped import grouped
from m5ws.records.run import Trainer


class LaunchArguments(TypedDict):
    """The values of `options`, by their names in `runs.run.RunOptions`."""

    trainer: Trainer | None
    nproc: int | None
    seed: int | None
    checkpoint_every: int | None
    checkpoint_minutes: float | None
    fingerprint_every: int | None
    observe: bool | None
    name: str | None


trainer = click.option(
    "--trainer",
    type=click.Choice(get_args(Trainer)),
    help="Program that starts the script (default: python, or torchrun for several processes).",
)
options = grouped(
    trainer,
    click.option(
        "--nproc", type=click.IntRange(min=1), metavar="N", help="Number of processes of a script without a launcher."
    ),
    click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed for m5ws.seed()."),
    click.option("--checkpoint-every", type=click.IntRange(min=1), metavar="N", help="Steps between checkpoints."),
    click.option(
        "--checkpoint-minutes",
        type=click.FloatRange(min=0, min_open=True),
        metavar="M",
        help="Minutes between checkpoints.",
    ),
    click.option(
        "--fingerprint-every",
        type=click.IntRange(min=0),
        metavar="N",
        help="Steps between fingerprints; 0: only with checkpoints. Without it: chosen by their cost.",
    ),
    click.option(
        "--observe/--no-observe", default=None, help="Record the steps of a script that does not use m5ws.session."
    ),
    click.option("--name", type=names.Text(), metavar="NAME", help="Display name of the run."),
)
