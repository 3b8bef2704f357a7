"""`m5ws logs`."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from m5ws import secret_scan
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from m5ws.records.log import LogPart
    from m5ws.repository.repository import Repository


class _Source(Protocol):
    """The logs of an attempt, each by its name: a rank, or `launcher`. New lines are read each `poll_s` seconds."""

    poll_s: float

    def names(self) -> list[str]:
        """Return the names of the logs."""

    def read(self, *, last: bool) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield new whole lines, each with the name of its log; with `last`, an unfinished last line too."""

    def texts(self) -> dict[str, str]:
        """Return the whole logs, masked."""


class _Folder:
    """`_Source` on this machine."""

    poll_s = 0.25

    def __init__(self, folder: Path) -> None:
        from m5ws.logs.log_lines import LogReader

        self._folder, self._reader = folder, LogReader
        self._readers: dict[str, LogReader] = {}

    def names(self) -> list[str]:
        return list(self._files())

    def read(self, *, last: bool) -> Iterator[tuple[str, Sequence[str]]]:
        for name, path in self._files().items():
            yield name, self._readers.setdefault(name, self._reader(path)).read(last=last)

    def texts(self) -> dict[str, str]:
        return {name: secret_scan.masked(path.read_text("utf-8", "replace")) for name, path in self._files().items()}

    def _files(self) -> dict[str, Path]:
        from m5ws.logs import parts

        return parts.find(self._folder)


class _Store:
    """`_Source` of a run on a cluster."""

    poll_s = 5.0

    def __init__(self, repo: "Repository", run: str, attempt: int) -> None:
        self._attempt = (repo, run, attempt)
        self._known: set[str] = set()
        self._names: set[str] = set()
        self._unread: list[LogPart] = []

    def names(self) -> list[str]:
        from m5ws.logs import parts

        self._unread += parts.load(*self._attempt, self._known)
        self._names.update(name for part in self._unread for name in part.lines)
        return list(self._names)

    def read(self, *, last: bool) -> Iterator[tuple[str, Sequence[str]]]:
        self.names()
        while self._unread:
            yield from self._unread.pop(0).lines.items()

    def texts(self) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for name, lines in self.read(last=True):
            found.setdefault(name, []).extend(lines)
        return {name: "".join(f"{line}\n" for line in lines) for name, lines in found.items()}


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
    from m5ws.logs import parts
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
    source: _Source = _Folder(folder) if folder.is_dir() else _Store(repo, run_id, chosen)
    found = source.names()
    if not found and not (follow and chosen in known) and not folder.is_dir():
        raise NotFound(
            f"no logs of run {run_id} in {folder}, and none in the store",
            hint="Logs stay on the machine that started the run.",
        )

    def ended() -> bool:
        workspace.open_repository()
        return ledger.ended(repo, run_id, chosen) is not None

    if as_json:
        logs = {name: text for name, text in source.texts().items() if name in parts.choose(found, rank)}
        return output.print_json({"run": run_id, "attempt": chosen, "directory": folder, "logs": logs})
    if rank is not None and not follow and rank not in found:
        raise NotFound(
            f"run {run_id} has no log of rank {rank}", hint=f"It has {', '.join(parts.choose(found, None))}."
        )
    return _print(source, rank, ended if follow else lambda: True)


def _print(source: _Source, rank: str | None, ended: Callable[[], bool]) -> None:
    """Print whole lines as they are written, until `ended`. Then print an unfinished last line too."""
    from m5ws.logs import parts

    is_empty = True
    while True:
        last = ended()
        found = source.names()
        chosen = parts.choose(found, rank)
        for name, lines in source.read(last=last):
            prefix = f"[{name}] " if len(chosen) > 1 else ""
            for line in lines if name in chosen else ():
                is_empty = False
                output.echo(*(prefix + part for part in line.splitlines() or [""]))
        if last:
            if is_empty:
                output.print_note(f"the log of {'all ranks' if rank is None else f'rank {rank}'} is empty")
            return
        time.sleep(source.poll_s)
