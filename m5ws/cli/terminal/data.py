"""Lines about remote datasets, and about bytes that cross regions, for people."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from m5ws.data.prefetching import RemoteUse
    from m5ws.library.crossings import Crossing
    from m5ws.records.ledger import Moved


def describe(use: "RemoteUse") -> str:
    """Return a line about the bytes of a dataset that this machine lacks, and their way."""
    missing, size = output.size(use.missing_bytes), output.size(use.size_bytes)
    return f"{use.name}: {missing} of {size} are not in the cache of this machine; {_way(use)}"


def _way(use: "RemoteUse") -> str:
    if "://" not in use.url:
        return "they are read from a folder"
    if use.region is None:
        return "the region of the data is unknown: its server reports none"
    if use.here is None:
        return f"the region of this machine is unknown, the data is in {use.region}: set AWS_DEFAULT_REGION"
    if use.region == use.here:
        return f"no byte crosses regions: the data and this machine are in {use.region}"
    return f"{output.size(use.missing_bytes)} cross from {use.region} to {use.here}"


def describe_crossing(crossing: "Crossing", cluster: str) -> "Iterator[str]":
    """Yield lines about the bytes of a job that cross regions."""
    here = crossing.here
    if here is None:
        yield f"the region of {cluster} is unknown: set region in [clusters.{cluster}] to list the bytes that cross"
        return
    if crossing.region is None:
        yield "the region of the store is unknown: its server reports none"
    elif crossing.region != here:
        each = [f"each node reads {output.size(crossing.snapshot_bytes)} of the snapshot"]
        if crossing.resume_bytes:
            each.append(f"the ranks read {output.size(crossing.resume_bytes)} of a checkpoint")
        saved = "an unknown number of bytes" if crossing.save_bytes is None else output.size(crossing.save_bytes)
        yield f"between the store in {crossing.region} and {here}: {', '.join(each)}, each checkpoint writes {saved}"
    for name, (region, size_bytes) in crossing.data.items():
        if region != here:
            size = output.size(size_bytes)
            yield f"{name}: {size} cross from {region or 'an unknown region'} to {here} in each epoch, unless cached"


def describe_moved(moved: "Iterable[Moved]") -> str | None:
    """Return the bytes that crossed regions, and the bytes whose regions are unknown; None if there are none."""
    texts = []
    for each in moved:
        between = f"between {each.region or 'an unknown region'} and {each.here or 'an unknown region'}"
        sizes = f"{output.size(each.read_bytes)} read, {output.size(each.written_bytes)} written"
        texts += [f"{sizes} {between}"] if each.crosses is not False else []
    return "; ".join(texts) or None
