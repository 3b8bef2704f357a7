"""`m5ws logs`."""

import itertools
import time
from typing import TYPE_CHECKING

import click

from m5ws import secret_scan
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from m5ws.logs.reading import Lines, Source
    from m5ws.repository.repository import Repository


def choose_attempt(repo: "Repository", run: str, attempt: int | None) -> int:
    """Return the attempt whose logs are read: the newest by default, 1 of a run without one. Raises NotFound."""
    from m5ws.errors import NotFound
    from m5ws.repository.ledger import ledger

    known = ledger.attempts(repo, run)
    if attempt is not None and attempt not in known:
        raise NotFound(f"run {run} has no attempt {attempt}", hint=f"It has {len(known)}.")
    return attempt or max(known, default=1)


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

    The logs contain stdout and stderr. They stay on the machine that started the run. Of a run on a cluster, the store
    has the lines too: new lines after 10 seconds in the beginning, and after 5 minutes in a long attempt. With more
    than one rank, each line begins with its rank. Colours are removed and other control characters escaped; --json
    prints the logs of this machine unchanged. Text that looks like a secret is masked.

    \b
    Example:
      m5ws logs 7c1d --rank 0 -f
    """
    from m5ws.errors import NotFound, UsageError
    from m5ws.logs import parts, reading
    from m5ws.repository.ledger import ledger

    if follow and as_json:
        raise UsageError("--follow cannot be combined with --json")
    workspace = names.workspace(context)
    repo = workspace.open_repository()
    run_id = names.find_id(repo, run, "run")
    chosen = choose_attempt(repo, run_id, attempt)
    folder = workspace.attempt_dir(run_id, chosen) / "logs"
    source = reading.source_of(repo, run_id, chosen, folder)

    def ended() -> bool:
        workspace.open_repository()
        return ledger.ended(repo, run_id, chosen) is not None

    readings = _read(source, ended if follow else lambda: True)
    lines = next(readings)
    found = {name for name, _ in lines}
    if not found and not (follow and chosen in ledger.attempts(repo, run_id)) and not folder.is_dir():
        raise NotFound(
            f"no logs of run {run_id} in {folder}, and none in the store",
            hint="Logs stay on the machine that started the run.",
        )
    if as_json:
        named = parts.choose(found, rank)
        logs = {name: "".join(f"{line}\n" for each, new in lines if each == name for line in new) for name in named}
        if folder.is_dir():
            paths = parts.find(folder)
            logs = {name: secret_scan.masked(paths[name].read_text("utf-8", "replace")) for name in named}
        return output.print_json({"run": run_id, "attempt": chosen, "directory": folder, "logs": logs})
    if rank is not None and not follow and rank not in found:
        raise NotFound(
            f"run {run_id} has no log of rank {rank}", hint=f"It has {', '.join(parts.choose(found, None))}."
        )
    return _print(itertools.chain([lines], readings), rank)


def _read(source: "Source", ended: "Callable[[], bool]") -> "Iterator[Lines]":
    """Yield new lines as they are written, until `ended`. The last of them may be unfinished."""
    while True:
        last = ended()
        yield source.read(last=last)
        if last:
            return
        time.sleep(source.poll_s)


def _print(readings: "Iterable[Lines]", rank: str | None) -> None:
    from m5ws.logs import parts

    found, is_empty = set[str](), True
    for lines in readings:
        found.update(name for name, _ in lines)
        chosen = parts.choose(found, rank)
        for name, new in lines:
            prefix = f"[{name}] " if len(chosen) > 1 else ""
            for line in new if name in chosen else ():
                is_empty = False
                output.echo(*(prefix + part for part in line.splitlines() or [""]))
    if is_empty:
        output.print_note(f"the log of {'all ranks' if rank is None else f'rank {rank}'} is empty")
