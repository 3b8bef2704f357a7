"""`m5ws logs`."""

import re
import time
from typing import TYPE_CHECKING

import click

from m5ws import secret_scan
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from m5ws.logs.reading import Source
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_NO_MATCH = 1


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
@click.option("--grep", metavar="PATTERN", help="Print only lines that match this regular expression of Python.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the attempt ends.")
@output.json_command
def command(
    context: click.Context,
    run: str,
    rank: str | None,
    attempt: int | None,
    grep: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the output of a run's ranks.

    The logs contain stdout and stderr. The store has the lines too, at most a minute after they were written, so
    that any machine prints them, during and after the run. Of a flood of lines, the store has the beginning and the
    end. With more than one rank, each line begins with its rank. Colours are removed and other control characters
    escaped; --json without --grep prints the logs of this machine unchanged. Text that looks like a secret is masked.

    With --grep, the exit status is 1 if no line matches.

    \b
    Examples:
      m5ws logs 7c1d --rank 0 -f
      m5ws logs 7c1d --grep '(?i)nccl warn'
    """
    from m5ws.errors import NotFound, UsageError
    from m5ws.logs import reading
    from m5ws.repository.ledger import ledger

    if follow and as_json:
        raise UsageError("--follow cannot be combined with --json")
    pattern = _pattern(grep)
    workspace, repo, run_id = names.open_run(context, run)
    chosen = choose_attempt(repo, run_id, attempt)
    folder = workspace.attempt_dir(run_id, chosen) / "logs"
    source = reading.Source(repo, run_id, chosen, folder)
    found = source.names()
    if not found and not (follow and chosen in ledger.attempts(repo, run_id)) and not folder.is_dir():
        raise NotFound(
            f"no logs of run {run_id} in {folder}, and none in the store",
            hint="The store has new lines after 10 seconds to a minute.",
        )

    ended = _follow_end(workspace, repo, run_id, chosen) if follow else lambda: True
    readings = _matching(_read(source, ended), pattern, found)
    if as_json:
        logs = _texts(readings, rank, found, folder if pattern is None else None)
        output.print_json({"run": run_id, "attempt": chosen, "directory": folder, "logs": logs})
        is_empty = not any(logs.values())
    else:
        is_empty = _print(readings, rank, found, run_id)
        if is_empty:
            logs_of = "all ranks" if rank is None else f"rank {rank}"
            output.print_note(f"the log of {logs_of} {'is empty' if pattern is None else 'has no line that matches'}")
    if is_empty and pattern is not None:
        context.exit(_NO_MATCH)


def _follow_end(workspace: "Workspace", repo: "Repository", run: str, attempt: int) -> "Callable[[], bool]":
    """Return a function that returns True after the end of an attempt, and that delivers the rest of a killed attempt.

    The ledger is listed until it has the attempt. Then each call asks for the next batch alone.
    """
    from m5ws.records.ledger import NODE, AttemptEnded, Batch
    from m5ws.repository.ledger import ledger

    newest: Batch | None = None

    def ended() -> bool:
        nonlocal newest
        workspace.deliver(repo)
        if newest is None:
            newest = next(ledger.backwards(repo, run, attempt), None)
            return ledger.ended(repo, run, attempt) is not None
        is_over = False
        for batch in ledger.read_newer(repo, run, attempt, 0, newest):
            newest = batch
            is_over = is_over or any(isinstance(event, AttemptEnded) for _, event in ledger.decode(batch, (NODE,)))
        return is_over

    return ended


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    from m5ws.errors import UsageError

    try:
        return re.compile(grep) if grep is not None else None
    except re.error as error:
        raise UsageError(f"--grep {grep} is no regular expression: {error}") from error


def _read(source: "Source", ended: "Callable[[], bool]") -> "Iterator[tuple[str, Sequence[str]]]":
    """Yield new lines as they are written, until `ended`. The last of them may be unfinished."""
    while True:
        last = ended()
        yield from source.read(last=last)
        if last:
            return
        time.sleep(source.poll_s)


def _matching(
    readings: "Iterable[tuple[str, Sequence[str]]]", pattern: re.Pattern[str] | None, found: set[str]
) -> "Iterator[tuple[str, Sequence[str]]]":
    """Yield the lines that match, with the names of their logs, which are added to `found`."""
    for name, lines in readings:
        found.add(name)
        yield name, lines if pattern is None else [line for line in lines if pattern.search(line)]


def _texts(
    readings: "Iterable[tuple[str, Sequence[str]]]", rank: str | None, found: set[str], folder: "Path | None"
) -> dict[str, str]:
    """Return the text of logs by name; of logs in the folder, the text as it was written."""
    from m5ws.logs import parts

    texts = dict[str, list[str]]()
    for name, lines in readings:
        texts.setdefault(name, []).extend(f"{line}\n" for line in lines)
    paths = parts.find(folder) if folder is not None else {}
    return {
        name: secret_scan.masked(paths[name].read_text("utf-8", "replace"))
        if name in paths
        else "".join(texts.get(name, ()))
        for name in parts.choose(found, rank)
    }


def _print(readings: "Iterable[tuple[str, Sequence[str]]]", rank: str | None, found: set[str], run: str) -> bool:
    """Print lines, and return True if there were none. Raises NotFound for a rank without a log."""
    from m5ws.errors import NotFound
    from m5ws.logs import parts

    is_empty = True
    for name, lines in readings:
        chosen = parts.choose(found, rank)
        prefix = f"[{name}] " if len(chosen) > 1 else ""
        for line in lines if name in chosen else ():
            is_empty = False
            output.echo(*(prefix + part for part in line.splitlines() or [""]))
    if rank is not None and rank not in found:
        raise NotFound(f"run {run} has no log of rank {rank}", hint=f"It has {', '.join(parts.choose(found, None))}.")
    return is_empty
