"""The samples at positions in the order of a source."""

from m5ws.data.order import SourceOrder
from m5ws.records.sample_ids import parse_ranges


def samples_at(source: SourceOrder, ranges: str) -> list[tuple[int, str, int]]:
    """Return the epoch, the path in the data set and the row of each sample in ranges of positions, in order."""
    samples = []
    for epoch, start, stop in parse_ranges(ranges):
        files, rows = source.order.locate(epoch, start, stop)
        samples += [(epoch, source.index.files[file], int(row)) for file, row in zip(files, rows, strict=True)]
    return samples
