"""`m5ws logs`."""

import time
from collections.abc import Callable
from pathlib import Path

import click

from m5ws import secret_scan
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.cli.terminal.log_lines import LogReader

_POLL_S = 0.25


@click.command("logs")
@click.argument("run", type=names.Id(("run",)))
@click.option("--rank", metavar="N", help="Print only this rank's log; `launcher` is the log of the launcher.")
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Print the logs of attempt N. [default: the newest]"
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the attempt ends.")
@output.json_option
@click.pass_context
def command(
    context: click.Context, run: str, rank: str | None, attempt: int | None, follow: bool, as_json: bool
) -> None:
    """Print the output of a run's ranks.

    The logs contain stdout and stderr. They stay on the machine that started the run. With more than one rank, each
    line begins with its rank. Colours are removed and other control characters escaped; --json prints them unchanged.
    Text that looks like a secret is masked.

    \b
    Example:
      m5ws logs 7c1d --rank 0 -f
    """
    from m5ws.errors import NotFound, UsageError
    from m5ws.repository.ledger import ledger

    if follow and as_json:
        raise UsageError("--follow cannot be combined with --json")
    workspace = names.workspace(context)
    repo = workspace.open_repository()
    run_id = names.find_id(repo, run, "run")
    known = ledger.attempts(repo, run_id)
    chosen = attempt or max(known, default=1)
    if attempt is not None and attempt not in known:
        raise NotFound(f"run {run_id} has no attempt {attempt}", hint=f"It has {len(known)}.")
    folder = workspace.attempt_dir(run_id, chosen) / "logs"
    if not folder.is_dir():
        raise NotFound(f"no logs of run {run_id} in {folder}", hint="Logs stay on the machine that started the run.")

    def ended() -> bool:
        workspace.open_repository()
        return ledger.ended(repo, run_id, chosen) is not None

    if as_json:
        texts = {name: path.read_text("utf-8", "replace") for name, path in _files(folder, rank).items()}
        logs = {name: secret_scan.masked(text) for name, text in texts.items()}
        return output.print_json({"run": run_id, "attempt": chosen, "directory": folder, "logs": logs})
    if rank is not None and not follow and not _files(folder, rank):
        raise NotFound(f"run {run_id} has no log of rank {rank}", hint=f"It has {', '.join(_files(folder, None))}.")
    return _print(folder, rank, ended if follow else lambda: True)


def _files(folder: Path, rank: str | None) -> dict[str, Path]:
    """Return the log files to print, by rank: the rank's file, else the files of all ranks, else the launcher's."""
    if rank is not None:
        path = folder / ("launcher.log" if rank == "launcher" else f"rank-{rank}.log")
        return {rank: path} if path.is_file() else {}
    ranks = {path.stem.removeprefix("rank-"): path for path in folder.glob("rank-*.log")}
    ordered = dict(sorted(ranks.items(), key=lambda item: (not item[0].isdigit(), item[0].zfill(8))))
    launcher = folder / "launcher.log"
    return ordered or ({"launcher": launcher} if launcher.is_file() else {})


def _print(folder: Path, rank: str | None, ended: Callable[[], bool]) -> None:
    """Print whole lines as they are written, until `ended`. Then print an unfinished last line too."""
    readers: dict[Path, LogReader] = {}
    is_empty = True
    while True:
        last = ended()
        files = _files(folder, rank)
        for name, path in files.items():
            reader = readers.setdefault(path, LogReader(path))
            prefix = f"[{name}] " if len(files) > 1 else ""
            for line in reader.read(last=last):
                is_empty = False
                output.echo(*(prefix + part for part in line.splitlines() or [""]))
        if last:
            if is_empty:
                output.print_note(f"the log of {'all ranks' if rank is None else f'rank {rank}'} is empty")
            return
        time.sleep(_POLL_S)
