"""Remote datasets of a snapshot on this machine: their bytes, the missing bytes, and the bytes that cross regions.

No region is guessed. The region of a bucket is in the URL, as its server reported it at the snapshot. The region of
this machine is the region that its AWS settings name.
"""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from m5ws.data import origins
from m5ws.data.remote import RemoteFiles
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.records.snapshot import Manifest, RemoteDataset
from m5ws.repository import concurrency
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.store.cache import limit


class RemoteUse(msgspec.Struct, frozen=True, kw_only=True):
    """A remote dataset: its files and bytes, the files and bytes that the cache lacks, and regions; None: unknown."""

    name: str
    url: str
    files: int
    size_bytes: int
    missing: int
    missing_bytes: int
    region: str | None
    here: str | None
    fits: bool

    @property
    def crossing_bytes(self) -> int | None:
        """Bytes that come from another region; 0 for a folder, None if a region is unknown."""
        if "://" not in self.url:
            return 0
        if self.region is None or self.here is None:
            return None
        return self.missing_bytes if self.region != self.here else 0


def uses(repo: Repository, snapshot_id: Digest, cache: tuple[Path, int]) -> list[tuple[RemoteUse, RemoteFiles]]:
    """Return the remote datasets of a snapshot, as this machine reads them. Asks no remote."""
    found = []
    for remote in snapshots.load(repo, snapshot_id).remote:
        files = RemoteFiles(remote, repo.objects.get_record(remote.manifest, Manifest), *cache)
        missing = {file.digest: file.size_bytes for file in files.missing()}
        is_s3 = remote.url.startswith("s3://")
        use = RemoteUse(
            name=remote.name,
            url=remote.url,
            files=remote.files,
            size_bytes=remote.size_bytes,
            missing=len(missing),
            missing_bytes=sum(missing.values()),
            region=region_of(remote),
            here=origins.s3_files(remote.url).here if is_s3 else None,
            fits=remote.size_bytes <= limit.capacity(cache[1]),
        )
        found.append((use, files))
    return found


def region_of(remote: RemoteDataset) -> str | None:
    """Return the region of a dataset, as its server reported it at the snapshot; None for a folder, or if unknown."""
    asked = parse_qs(urlsplit(remote.url).query) if remote.url.startswith("s3://") else {}
    return next(iter(asked.get("region", ())), None)


def fetch(files: RemoteFiles, progress: Progress | None = None) -> None:
    """Download the missing files of a dataset in parallel, each verified. Raises as `RemoteFiles.fetch`."""
    missing = files.missing()
    total, done = sum(file.size_bytes for file in missing), 0
    for file, _ in zip(missing, concurrency.for_each(lambda file: files.fetch(file.path), missing), strict=True):
        done += file.size_bytes
        report(progress, f"fetching {files.remote.name}", done, total)
