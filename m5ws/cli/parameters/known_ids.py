"""Ids that shell completion offers, without a request to a server.

Ids of a store in a directory are listed. Of a store in a bucket, the runs in this workspace are known.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from m5ws.workspace import Workspace

if TYPE_CHECKING:
    from m5ws.repository.references.ids import Kind

_MOST_OFFERED = 200


def load(workspace: Workspace, kinds: "Sequence[Kind]", prefix: str) -> list[str]:
    """Return known ids of these kinds that begin with a prefix. May raise any error of a store."""
    if workspace.store_dir is None:
        known = [run.name for run in (workspace.home / "runs").glob("*")] if "run" in kinds else []
    else:
        known = _stored(workspace, kinds)
    return sorted(each for each in known if each.startswith(prefix))[:_MOST_OFFERED]


def _stored(workspace: Workspace, kinds: "Sequence[Kind]") -> list[str]:
    from m5ws.repository import removals
    from m5ws.repository.references import run_index, runs, snapshots

    repo, known = workspace.repository(), list[str]()
    if "run" in kinds:
        removed = removals.removed_runs(repo)
        known += [run for run in runs.ids(repo) if run not in removed]
    if "sweep" in kinds:
        facts = [fact.created for fact in run_index.load(repo).values()]
        known += {created.sweep for created in facts if created is not None and created.sweep is not None}
    if "snapshot" in kinds:
        known += [name[:12] for name in snapshots.ids(repo)]
    return known
