"""`m5ws ui`."""

import os

import click

from m5ws.agent import recovery, untracked
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import UsageError


@click.command("ui")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True, help="Port on this machine.")
@click.option("--deliver", is_flag=True, help="Deliver all that MLflow lacks, and serve nothing.")
@output.json_command
def command(context: click.Context, port: int, deliver: bool, as_json: bool) -> None:
    """Open MLflow with this workspace's runs.

    The command prints the address of the experiment's runs, and serves MLflow's own UI on this machine until Ctrl-C.
    If m5ws.toml names an MLflow server, the address there is printed, and nothing is served. With --json, print the
    address and the server's command, and serve nothing.

    MLflow receives a run's last records in the background. This command first delivers the records that MLflow lacks,
    with --deliver also to the store.

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
    if argv:
        workspace.prepare()
        tracker.migrate()
    if deliver and any((workspace.home / "runs").glob("*")):
        # Pages are read from the store.
        recovery.deliver(workspace.repository(), workspace.home, workspace.kept)
    with progress.Bar() as bar:
        bar("delivering missing records to MLflow", 0, 0)
        problems = untracked.catch_up(tracker, workspace.home)
    for problem in problems:
        output.print_note(f"note: {problem}")
    output.echo(url + tracker.ui_page())
    if argv and not deliver:
        output.print_note("MLflow's server starts now, which takes some seconds. Ctrl-C ends it.")
        os.execvp(argv[0], argv)
    return None
