"""The numbers of samples in the files of a dataset. The nodes of all runs of a store count each file once.

The files are divided into parts of consecutive files. A node takes the parts that the store lacks, from a place of its
own on, and publishes each part when it is counted. So nodes that start together share the work without a wait for each
other, and a killed node leaves whole parts.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from m5ws.errors import ObjectExists
from m5ws.records.sample_counts import SAMPLES, SampleCounts
from m5ws.repository import bindings
from m5ws.repository.repository import Repository

PARTS = (2**30, 64)
"""The least bytes of a part, and the most parts."""
_THREADS = 8


class Home(NamedTuple):
    """The store with the counts of a dataset, whose files have `sizes` in bytes.

    `place` is of this process among all processes: 0 to below 1.
    """

    repo: Repository
    place: float
    sizes: Sequence[int]


def count(
    home: Home | None, dataset: str, reading: str, numbers: Sequence[int], count_file: Callable[[int], int]
) -> tuple[int, ...]:
    """Return the number of samples in each of the files of a dataset with these numbers, which have a format.

    `count_file` takes the place of a file among them. Without a `home`, it is called for each.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        if home is None:
            return tuple(threads.map(count_file, range(len(numbers))))
        parts, prefix = _parts([home.sizes[number] for number in numbers]), f"{SAMPLES}{dataset}/{reading}-"

        def find(part: int) -> tuple[int, ...]:
            record = bindings.find(home.repo.store, f"{prefix}{part:02}", SampleCounts)
            return record.counts if record is not None and len(record.counts) == len(parts[part]) else ()

        def make(part: int) -> tuple[int, ...]:
            counts = tuple(threads.map(count_file, parts[part]))
            with suppress(ObjectExists):
                bindings.create(home.repo.store, f"{prefix}{part:02}", SampleCounts(counts=counts))
            return counts

        known = list(threads.map(find, range(len(parts))))
        first = int(home.place * len(parts))
        for part in (*range(first, len(parts)), *range(first)):
            # Another node may have published the part since the first look.
            known[part] = known[part] or find(part) or make(part)
        # A reader compares the count of each file that it opens, but opens no file without samples.
        return tuple(
            threads.map(lambda file, each: each or count_file(file), range(len(numbers)), chain.from_iterable(known))
        )


def _parts(sizes: Sequence[int]) -> list[range]:
    """Return the files of each part."""
    least, most = PARTS
    part_bytes = max(least, -(-sum(sizes) // most))
    numbers = [before // part_bytes for before in accumulate(sizes, initial=0)][: len(sizes)]
    starts = [at for at in range(len(sizes)) if at == 0 or numbers[at] != numbers[at - 1]]
    return [range(start, stop) for start, stop in pairwise([*starts, len(sizes)])]
