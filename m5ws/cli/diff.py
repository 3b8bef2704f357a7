"""`m5ws diff`."""

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import change_text, output, progress


@click.command("diff")
@click.argument("a", type=names.Id())
@click.argument("b", type=names.Id())
@click.option("--brief", is_flag=True, help="Leave out the content of changed files.")
@output.json_command
def command(context: click.Context, a: str, b: str, brief: bool, as_json: bool) -> None:
    """Show the differences between two snapshots or runs.

    Code is shown as a unified diff, config by its keys, the script's arguments by their names. Differences of
    tokenizer, data, environment and launch are listed with their effect on bits. If the git repository around the
    workspace has the commits between A and B, their authors and subjects are listed. Equal parts are left out. For two
    runs, the environments of their last attempts are compared, and differences between the attempts of one run follow.
    For a run and a snapshot, the run's snapshot is compared.

    \b
    Example:
      m5ws diff 1f3a9c 7c1d22
    """
    from m5ws.diff import commit_history, diff
    from m5ws.environment import attempt_environments
    from m5ws.repository.references import ids, runs

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    with progress.Bar() as bar:
        bar(f"comparing {a} and {b}", 0, 0)
        (kind_a, id_a), (kind_b, id_b) = ids.resolve(repo, a), ids.resolve(repo, b)
        if kind_a == kind_b == "run":
            differences = diff.between_runs(repo, id_a, id_b)
        else:
            snapshot_a = runs.load(repo, id_a).snapshot if kind_a == "run" else id_a
            snapshot_b = runs.load(repo, id_b).snapshot if kind_b == "run" else id_b
            differences = diff.between_snapshots(repo, snapshot_a, snapshot_b)
        differences = commit_history.detailed(differences, workspace.history())
        within = {
            run: attempt_environments.drift_by_attempt(repo, run)
            for run in dict.fromkeys((id_a, id_b))
            if kind_a == kind_b == "run"
        }
    if as_json:
        return output.print_json({"a": id_a, "b": id_b, "changes": differences, "attempts": within})
    output.echo(*change_text.lines(differences, brief=brief))
    for run, attempts in within.items():
        for attempt, changes in attempts.items():
            output.echo(
                "", f"attempt {attempt} of run {run}, compared with its first attempt", *change_text.lines(changes)
            )
    return None
