"""Bytes that a job on a cluster moves between regions, as far as they are known before it begins.

No region is guessed: a cluster has the region of its settings, and the store and remote data have the regions that
their servers reported.
"""

import msgspec

from m5ws.config.settings import Cluster
from m5ws.data import prefetching
from m5ws.records.run import Run
from m5ws.repository.references import checkpoints, snapshots
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes between two regions; None: unknown.

    Each node reads `snapshot_bytes`. The ranks read `resume_bytes` of a checkpoint together, and write `save_bytes` for
    each checkpoint. `data` has the bytes of remote datasets by name, with their region: each is read once in an epoch.
    """

    region: str | None
    here: str | None
    snapshot_bytes: int = 0
    resume_bytes: int = 0
    save_bytes: int | None = None
    data: dict[str, tuple[str | None, int]] = {}


def of_run(repo: Repository, run: Run, cluster: Cluster) -> Crossing | None:
    """Return the bytes of a run on a cluster; None if neither its store nor its data is in S3."""
    remote = [each for each in snapshots.load(repo, run.snapshot).remote if each.url.startswith("s3://")]
    data = {each.name: (prefetching.region_of(each), each.size_bytes) for each in remote}
    is_bucket = repo.store.url.startswith("s3://")
    if not is_bucket and not data:
        return None
    found = Crossing(region=repo.format.home_region, here=cluster.region, data=data)
    if not is_bucket:
        return msgspec.structs.replace(found, region=cluster.region)
    own = [checkpoints.digest(repo, run.id, label) for label in checkpoints.valid(repo, run.id)[-1:]]
    first = own or ([run.parent.digest] if run.parent is not None else [])
    resumed = sum(closure.of_checkpoint(repo, first[0]).values()) if first else None
    return msgspec.structs.replace(
        found,
        snapshot_bytes=sum(closure.closure(repo, "snapshot", run.snapshot).values()),
        resume_bytes=resumed or 0,
        save_bytes=resumed,
    )
