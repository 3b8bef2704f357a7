"""Lines about remote datasets, for people."""

from typing import TYPE_CHECKING

from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from m5ws.data.prefetching import RemoteUse


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
