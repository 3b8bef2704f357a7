"""`m5ws sync`."""

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import UsageError


@click.command("sync")
@click.argument("run", type=names.Id(("run",)))
@click.option("--to", "uri", metavar="URI", help="Address of another MLflow; without it, the workspace's own.")
@click.option("--dry-run", is_flag=True, help="Count the missing records, and send nothing.")
@output.json_command
def command(context: click.Context, run: str, uri: str | None, dry_run: bool, as_json: bool) -> int:
    """Replay a whole run into MLflow, or into another MLflow server.

    The server gets the run's parameters, metrics, tags, notes, verdicts, models and datasets from the store. Records
    that it has are not sent again. To complete an interrupted command, repeat it. Name and password are read from
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, the file with the server's authority from
    MLFLOW_TRACKING_SERVER_CERT_PATH.

    Exit status: 0 the server has the run, 1 it refuses some of the run's records.

    \b
    Examples:
      m5ws sync 7c1d --to https://mlflow.example.org
      m5ws sync 7c1d --to https://mlflow.example.org --dry-run
    """
    from m5ws.secret_scan import masked

    if uri is not None and masked(uri) != uri:
        raise UsageError(
            "--to contains a password, which all users of this machine can see",
            hint="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, and leave the password out of --to.",
        )
    if uri is not None and not uri.startswith(("http://", "https://", "sqlite:///")):
        raise UsageError(f"--to {uri} is no address of an MLflow", hint="Write https://HOST, or sqlite:///PATH.")
    workspace, _, run_id = names.open_run(context, run)
    if (tracker := workspace.tracker(uri)) is None:
        raise UsageError("tracking is switched off", hint="Set [mlflow] enabled = true in m5ws.toml, or give --to.")
    with progress.Bar() as bar:
        bar("reading the run and its page in MLflow", 0, 0)
        report = tracker.sync(run_id, dry_run=dry_run, progress=bar)
    if as_json:
        output.print_json(report)
    else:
        counts = f"{report.steps:,} steps, {report.models:,} models and {report.datasets:,} datasets"
        verb = "MLflow lacks" if dry_run else "sent"
        output.echo(f"run {run_id}: {verb} {counts}; page {report.page or 'missing'}")
    for refusal in report.refused:
        output.print_note(f"note: MLflow refuses {refusal}")
    return int(bool(report.refused))
