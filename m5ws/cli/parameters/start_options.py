"""Options of the commands that start attempts of runs."""

from typing import TypedDict

import click

from m5ws.cli import environment
from m5ws.cli.parameters.grouped import grouped
from m5ws.cli.terminal import output

dry_run = click.option("--dry-run", is_flag=True, help="Print the launch; launch nothing.")
no_progress = click.option("--no-progress", is_flag=True, help="Print neither steps nor the output of rank 0.")
parallel = click.option(
    "--parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of runs of a sweep at the same time (default: 1).",
)
options = grouped(environment.policy_option, dry_run, no_progress, output.json_option)


class StartArguments(TypedDict):
    """The values of `options`. A resume has the option `--env` of `environment.option`."""

    env: tuple[str, ...]
    dry_run: bool
    no_progress: bool
    as_json: bool
