"""`m5ws ui`."""

import os

import click

from m5ws.agent import untracked
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import UsageError


@click.command("ui")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True, help="Port on this machine.")
@output.json_option
@click.pass_context
def command(context: click.Context, port: int, as_json: bool) -> None:
    """Open MLflow with this workspace's runs.

    The command prints the address of the experiment's runs, and serves MLflow's own UI on this machine until Ctrl-C.
    If m5ws.toml names an MLflow server, the address there is printed, and nothing is served. With --json, print the
    address and the server's command, and serve nothing.

    \b
    Example:
      m5ws ui --port 5001
    """
    workspace = names.workspace(context)
    tracker = workspace.tracker()
    if tracker is None:
        raise UsageError("tracking is switched off", hint="Set [mlflow] enabled = true in m5ws.toml.")
    argv, url = tracker.ui_argv(port), tracker.ui_url(port)
    if as_json:
        return output.print_json({"url": url + tracker.ui_page(), "command": argv})
    problems = (
        untracked.deliver_verdicts(workspace.repository(), tracker, workspace.home)
        if untracked.pending_verdicts(workspace.home)
        else []
    )
    if argv:
        workspace.prepare()
        tracker.migrate()
        problems += untracked.catch_up(tracker, workspace.home)
    for problem in problems:
        output.print_note(f"note: {problem}")
    output.echo(url + tracker.ui_page())
    if argv:
        os.execvp(argv[0], argv)
    return None
