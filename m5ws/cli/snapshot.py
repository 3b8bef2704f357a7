"""`m5ws snapshot`, and the snapshot that `m5ws run` takes on the spot."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli import names, output, progress

if TYPE_CHECKING:
    from m5ws.operations.ahead import Ahead
    from m5ws.operations.snapshot import Captured
    from m5ws.ports import DatasetSource
    from m5ws.repository import Repository
    from m5ws.workspace import Workspace


@click.command("snapshot")
@click.option("-m", "--message", type=names.Text(), metavar="TEXT", help="What is said of it; no part of its id.")
@click.option("--dry-run", is_flag=True, help="Print the id it would have, and publish nothing.")
@click.option("--rehash", is_flag=True, help="Read every file, also those that seem unchanged.")
@output.json_option
@click.pass_context
def command(context: click.Context, message: str | None, dry_run: bool, rehash: bool, as_json: bool) -> None:
    """Pin code, config, tokenizer, data and environment; print one digest.

    The same inputs give the same id, on another machine and in another directory too. Code is every file that
    git tracks, and every one that it neither tracks nor ignores, as it is in the working tree. Files that
    look like secrets are refused, each by name. A file whose size and time stamps did not change is not read again,
    unless a process has it mapped to write to, or with --rehash.

    \b
    Example:
      m5ws snapshot -m "warm-up of 200 steps"
    """
    if sys.argv[1:] == [context.info_name] and message is None and not dry_run and not as_json:
        return _say_and_note(context)
    from m5ws import again

    here = names.workspace(context)
    if rehash:
        # It holds what files were known to have; without it, all are read.
        for known in (here.index_path, here.home / again.NAME):
            known.unlink(missing_ok=True)
    taken = take(here, here.repository(create=not dry_run, imagined=dry_run), message, dry_run=dry_run)
    return output.print_json(taken) if as_json else output.echo(taken.id)


def take(here: "Workspace", repo: "Repository", message: str | None, *, dry_run: bool = False) -> "Captured":
    """Take a snapshot of a workspace, and say on stderr what was captured. Raises as `operations.snapshot` does."""
    return _taken(here, repo, _source(here), here.datasets(), message, dry_run=dry_run)[0]


def _say_and_note(context: click.Context) -> None:
    """Take a snapshot and print its id; note the answer, where it can be given again (docs/design/0013)."""
    from m5ws import again, place

    # What is noted is held against what was there before anything was read.
    began_ns, root = time.time_ns(), place.nearest(os.getcwd())
    before = again.before(os.path.join(root, place.STATE), sys.argv[1:]) if root is not None else {}
    with output.warnings() as warned:
        here = names.workspace(context)
        repo = here.repository(create=True)
        if (watched := here.watched(repo)) is None:
            return output.echo(take(here, repo, None).id)
        from m5ws.operations import repeat

        repo, witnesses = watched
        source, found = _source(here), here.datasets()
        datasets = repeat.Datasets(found) if found is not None else None
        taken, said = _taken(here, repo, source, datasets, None)
        output.echo(taken.id)
        command = repeat.Command(
            home=here.home, arguments=sys.argv[1:], began_ns=began_ns, before=before, out=f"{taken.id}\n", err=said
        )
        # A warning is to be given each time, by who finds that it is still called for.
        if not warned:
            repeat.note(command, here.settings, taken, source, datasets, witnesses())
    return None


def _source(here: "Workspace") -> "Ahead":
    """Return git, at work already while this process imports the rest."""
    from m5ws.operations.ahead import Ahead

    return Ahead(here.source(), Path(os.path.realpath(here.root)), seen=here.index_path.exists())


def _taken(
    here: "Workspace",
    repo: "Repository",
    source: "Ahead",
    datasets: "DatasetSource | None",
    message: str | None,
    *,
    dry_run: bool = False,
) -> "tuple[Captured, str]":
    """As `take`; return too what was said."""
    from m5ws.operations import snapshot

    ports = (source, datasets, here.tokenizers(), here.observer(), here.index_path)
    with progress.Bar() as bar:
        if dry_run:
            taken = snapshot.capture(here.root, here.settings, repo, *ports, message, dry_run, bar)
        else:
            taken = snapshot.take(here.root, here.settings, repo, *ports, message, bar)
    new = f"{output.size(taken.new_bytes)} new" if taken.new_bytes else "nothing new"
    said = [f"{taken.files:,} files, {output.size(taken.size_bytes)}, {new}"]
    said += [f"note: {line}" for line in taken.annotation.notes]
    for line in said:
        output.note(line)
    return taken, "".join(f"{line}\n" for line in said)


def start(
    here: "Workspace", repo: "Repository", named: str | None, overrides: tuple[str, ...], message: str | None
) -> str:
    """Return the one snapshot a run starts from: the named one or a new one, with the overrides made to it."""
    from m5ws.operations import overrides as operation

    snapshot_id = names.found(repo, named, "snapshot") if named else take(here, repo, message).id
    return operation.derive(repo, snapshot_id, overrides) if overrides else snapshot_id
