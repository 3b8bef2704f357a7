"""`m5ws canary history`."""

import click

from m5ws.cli import canary as canary_command
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output


@click.command("history")
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@output.json_command
def command(context: click.Context, snapshot: str | None, as_json: bool) -> None:
    """List the results of canaries.

    The results of all machines are listed, oldest first, with the changes of the environment between the last good and
    the first bad result of each kind.

    \b
    Examples:
      m5ws canary history
      m5ws canary history 7c1d --json
    """
    from m5ws.preflight import canary
    from m5ws.repository.references import canaries

    repo = names.workspace(context).open_repository()
    chosen = [names.find_id(repo, snapshot, "snapshot")] if snapshot else canaries.snapshots(repo)
    results = [each for name in chosen for each in canaries.of_snapshot(repo, name)]
    if not results and not as_json:
        return output.print_note("no canary has run: `m5ws canary` runs the first")
    turns = list(canary.turns(repo, results))
    if as_json:
        return output.print_json({"results": results, "turns": turns})
    rows = [
        (
            output.moment(each.created_s),
            each.host,
            each.kind[:8],
            each.outcome,
            output.short(each.snapshot),
            each.run or "-",
            each.detail,
        )
        for each in results
    ]
    output.echo(output.table(("WHEN", "HOST", "KIND", "OUTCOME", "SNAPSHOT", "RUN", ""), rows))
    for turn in turns:
        canary_command.print_turn(turn)
    return None
