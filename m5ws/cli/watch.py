"""`m5ws watch`."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import interrupt, live_view, output, progress

if TYPE_CHECKING:
    from m5ws.reports.live import LiveRun, LiveState
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_INTERVAL_S = 2.0

Show = Callable[["LiveState"], None]
"""Shows the state of a run."""


@click.command("watch")
@click.argument("run", type=names.Id(("run",)))
@click.option("--once", is_flag=True, help="Print the view once.")
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, once: bool, as_json: bool) -> None:
    """Show a run while it goes on.

    The view has the state, the last step, speed and time left, the quantities of the last step, checkpoints, notices
    and errors of ranks. It is renewed every 2 seconds, until the run ends. Without a terminal, it is printed at the
    end. The steps are at most a minute old, as the store has them.

    Ctrl-C ends the view. The run is not touched. --json prints the state once.

    Exit status: 0 the run has ended, or the view was printed once; 130 interrupted.

    \b
    Examples:
      m5ws watch 7c1d
      m5ws watch 7c1d --once
    """
    from m5ws.reports import live

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    run_id = names.find_id(repo, run, "run")
    watched = live.LiveRun(repo, run_id)
    with progress.Bar() as bar:
        watched.refresh(bar)
    if as_json:
        return output.print_json(watched.state())
    if once:
        return output.echo(*_lines(watched.state()))
    pause = partial(_pause, workspace, repo)
    with interrupt.on_signals(), TerminalView() if sys.stdout.isatty() else nullcontext(_show_end) as show:
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


class TerminalView(AbstractContextManager[Show]):
    """A view that is drawn over itself. The last view stays on the terminal."""

    def __enter__(self) -> Show:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(), auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        return self._show

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def _show(self, state: "LiveState") -> None:
        self._live.update(output.rich_text(_lines(state)), refresh=True)


def _show_end(state: "LiveState") -> None:
    """Print the view of a run that has ended."""
    if state.newest.standing not in ("created", "running"):
        output.echo(*_lines(state))
