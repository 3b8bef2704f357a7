"""`m5ws watch`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import interrupt, live_view, output, progress
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.reports.live import LiveRun, LiveState
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_INTERVAL_S = 2.0

Show = Callable[["LiveState"], None]
"""Shows the state of a run."""


@click.command("watch")
@click.argument("run", type=names.Id(("run",)), nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Print the view once.")
@click.option("--unattended", is_flag=True, help="Look at runs once, for cron or a timer.")
@click.option(
    "--limit",
    "limit_min",
    type=click.FloatRange(min=0, min_open=True),
    default=35.0,
    show_default=True,
    metavar="MINUTES",
    help="With --unattended: the longest time without an event of a run that goes on.",
)
@click.option("--ping", metavar="URL", help="With --unattended: fetch URL if the exit status is 0.")
@output.json_command
def command(
    context: click.Context,
    run: tuple[str, ...],
    once: bool,
    unattended: bool,
    limit_min: float,
    ping: str | None,
    as_json: bool,
) -> None:
    """Show a run while it goes on.

    The view has the state, the last step, speed and time left, the quantities of the last step, checkpoints, notices
    and errors of ranks. It is renewed every 2 seconds, until the run ends. Without a terminal, it is printed at the
    end. The steps are at most a minute old, as the store has them.

    Ctrl-C ends the view. The run is not touched. --json prints the state once.

    --unattended looks at runs once. A run is dead if its newest attempt goes on without an event for MINUTES, or if its
    leader was killed. A message about it goes to the targets of `[notify]`, once for each attempt. URL is the address
    of a service that alerts if it is not fetched for a while.

    Exit status: 0 the run has ended, or the view was printed once; 130 interrupted. With --unattended: 0 each run
    finished, goes on, or waits for its start; 1 a run is dead, failed or was stopped.

    \b
    Examples:
      m5ws watch 7c1d
      m5ws watch 7c1d --once
      m5ws watch --unattended 7c1d 9a04
    """
    from m5ws.cli import unattended as look
    from m5ws.reports import live

    if not unattended and (len(run) > 1 or ping is not None):
        raise UsageError("several runs and --ping require --unattended")
    workspace = names.workspace(context)
    repo = workspace.open_repository()
    found = [names.find_id(repo, each, "run") for each in run]
    if unattended:
        signs = look.look(workspace, repo, found, limit_min * 60, ping)
        if as_json:
            output.print_json(signs)
        else:
            output.echo(*map(str, signs))
        context.exit(max(sign.status for sign in signs))
    watched = live.LiveRun(repo, found[0])
    with progress.Bar() as bar:
        watched.refresh(bar)
    if as_json:
        return output.print_json(watched.state())
    if once:
        return output.echo(*_lines(watched.state()))
    pause = partial(_pause, workspace, repo)
    with interrupt.on_signals(), _terminal_view() if sys.stdout.isatty() else nullcontext(_show_end) as show:
        follow(watched, show, pause)
    return None


def follow(watched: "LiveRun", show: Show, pause: Callable[[], None]) -> None:
    """Show a run, which was read once, until it has ended. `pause` is called before each further reading."""
    show(watched.state())
    while not watched.ended:
        pause()
        watched.refresh()
        show(watched.state())


def _pause(workspace: "Workspace", repo: "Repository") -> None:
    """Wait, then deliver the events that a killed supervisor left here, with the end of its attempt."""
    time.sleep(_INTERVAL_S)
    workspace.deliver(repo)


def _lines(state: "LiveState") -> list[output.Line]:
    return live_view.lines(state, time.time())


@contextmanager
def _terminal_view() -> Iterator[Show]:
    """Yield a function that draws a view over the view before. The last view stays on the terminal."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda state: live.update(output.rich_text(_lines(state)), refresh=True)


def _show_end(state: "LiveState") -> None:
    """Print the view of a run that has ended."""
    if state.newest.standing not in ("created", "running"):
        output.echo(*_lines(state))
