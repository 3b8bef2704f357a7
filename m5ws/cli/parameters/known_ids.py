"""Ids that shell completion offers, with descriptions, without a request to a server.

The run index of a store in a directory is read. Of a store in a bucket, the runs in this workspace are known.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from m5ws.workspace import Workspace

if TYPE_CHECKING:
    from m5ws.repository.references.ids import Kind
    from m5ws.repository.references.run_index import RunFacts

_MOST_OFFERED = 200


class KnownId(msgspec.Struct, frozen=True, kw_only=True):
    """An id with a description of one line. `sweep` is a run's sweep. Newer ids are offered first."""

    id: str
    kind: str
    text: str
    created_s: float = 0.0
    sweep: str | None = None


def load(workspace: Workspace, kinds: "Sequence[Kind]", prefix: str) -> list[KnownId]:
    """Return the newest known ids of these kinds that begin with a prefix. May raise any error of a store."""
    wanted = set[str](kinds)
    if workspace.store_dir is None:
        runs = (workspace.home / "runs").glob("*")
        known = [KnownId(id=run.name, kind="run", text="run", created_s=run.stat().st_mtime) for run in runs]
    else:
        known = list(_stored(workspace, wanted))
    known += _sweeps(known)
    matches = [each for each in known if each.kind in wanted and each.id.startswith(prefix)]
    return sorted(matches, key=lambda each: (-each.created_s, each.id))[:_MOST_OFFERED]


def _stored(workspace: Workspace, kinds: set[str]) -> Iterator[KnownId]:
    from m5ws.repository import removals
    from m5ws.repository.references import run_index, runs, snapshots

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
    title = created.name or (f"reproduces {created.reproduces}" if created.reproduces else "run")
    text = f"{title}: {state}" + (f", step {ended.last_step}" if ended is not None and ended.last_step else "")
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
