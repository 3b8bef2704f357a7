"""Ids that shell completion offers, with descriptions, without a request to a server.

The run index of a store in a directory is read. Of a store in a bucket, this workspace has a list of the ids that
`m5ws ls` listed, and its own runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from m5ws.filesystem import write_atomically
from m5ws.workspace import Workspace

if TYPE_CHECKING:
    from m5ws.repository.ids import Kind
    from m5ws.repository.run_index import RunFacts

_FILE = "known-ids"
_MOST_KEPT = 1000
_MOST_OFFERED = 200


class KnownId(msgspec.Struct, frozen=True, kw_only=True):
    """An id with a description of one line. `sweep` is that of a run. Newer ones are offered first."""

    id: str
    kind: str
    text: str
    created_s: float = 0.0
    sweep: str | None = None


def describe_run(name: str | None, reproduces: str | None, state: str, step: int | None) -> str:
    """Return the description of a run: its name, state and last step."""
    title = name or (f"reproduces {reproduces}" if reproduces else "run")
    return f"{title}: {state}" + (f", step {step}" if step else "")


def load(workspace: Workspace, kinds: "Sequence[Kind]", prefix: str) -> list[KnownId]:
    """Return the newest known ids of these kinds that begin with a prefix. May raise any error of a store."""
    wanted = set[str](kinds)
    known = _kept(workspace) if workspace.store_dir is None else list(_stored(workspace, wanted))
    known += _sweeps(known)
    matches = [each for each in known if each.kind in wanted and each.id.startswith(prefix)]
    return sorted(matches, key=lambda each: (-each.created_s, each.id))[:_MOST_OFFERED]


def remember(workspace: Workspace, ids: Iterable[KnownId]) -> None:
    """Add ids to the list of this workspace, if its store is in a bucket. An error is ignored."""
    if workspace.store_dir is not None:
        return
    with suppress(OSError):
        merged = {each.id: each for each in (*_kept(workspace), *ids)}
        newest = sorted(merged.values(), key=lambda each: -each.created_s)[:_MOST_KEPT]
        write_atomically(workspace.prepare() / _FILE, msgspec.msgpack.encode(newest))


def _kept(workspace: Workspace) -> list[KnownId]:
    """Return the list of this workspace, with the runs in its folder that the list lacks."""
    try:
        kept = msgspec.msgpack.decode((workspace.home / _FILE).read_bytes(), type=list[KnownId])
    except (OSError, msgspec.MsgspecError):
        kept = []
    listed = {each.id for each in kept}
    here = (path for path in (workspace.home / "runs").glob("*") if path.name not in listed)
    return kept + [
        KnownId(id=path.name, kind="run", text="run of this workspace", created_s=path.stat().st_mtime) for path in here
    ]


def _stored(workspace: Workspace, kinds: set[str]) -> Iterator[KnownId]:
    from m5ws.repository import removals, run_index, runs, snapshots

    repo = workspace.repository()
    if kinds & {"run", "sweep"}:
        index, removed = run_index.load(repo), removals.removed_runs(repo)
        yield from (_run(run, index.get(run)) for run in runs.ids(repo) if run not in removed)
    if "snapshot" in kinds:
        yield from (KnownId(id=name[:12], kind="snapshot", text="snapshot") for name in snapshots.ids(repo))


def _run(run: str, facts: "RunFacts | None") -> KnownId:
    """Return a run as the index describes it. Its record and ledger are not read."""
    if facts is None or (created := facts.created) is None:
        return KnownId(id=run, kind="run", text="run")
    ended = facts.ended
    state = facts.outcome or (ended.outcome if ended is not None else "not ended")
    text = describe_run(created.name, created.reproduces, state, ended.last_step if ended is not None else None)
    return KnownId(id=run, kind="run", text=text, created_s=created.created_s, sweep=created.sweep)


def _sweeps(known: list[KnownId]) -> list[KnownId]:
    members: dict[str, list[KnownId]] = {}
    for each in known:
        if each.sweep is not None:
            members.setdefault(each.sweep, []).append(each)
    return [
        KnownId(
            id=sweep, kind="sweep", text=f"sweep: {len(runs)} runs have begun", created_s=max(r.created_s for r in runs)
        )
        for sweep, runs in members.items()
    ]
