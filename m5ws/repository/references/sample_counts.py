"""Numbers of samples in files of datasets, `samples/<dataset>/<reading>-<part>`, each written once.

They follow from the dataset, so it does not matter which node writes them. They stay as long as snapshots, which `gc`
never deletes.
"""

from contextlib import suppress

from m5ws.errors import ObjectExists
from m5ws.records.base import Digest
from m5ws.records.sample_counts import SampleCounts
from m5ws.repository import bindings
from m5ws.repository.repository import Repository

PREFIX = "samples/"


def find(repo: Repository, dataset: Digest, reading: str, part: int) -> tuple[int, ...] | None:
    """Return the counts of a part, or None. Raises CorruptObject, Misplaced, UnknownSchema."""
    record = bindings.find(repo.store, _key(dataset, reading, part), SampleCounts)
    return record.counts if record is not None else None


def publish(repo: Repository, counts: SampleCounts) -> None:
    """Publish the counts of a part, unless another node has published them."""
    with suppress(ObjectExists):
        bindings.create(repo.store, _key(counts.dataset, counts.reading, counts.part), counts)


def _key(dataset: Digest, reading: str, part: int) -> str:
    return f"{PREFIX}{dataset}/{reading}-{part:02d}"
