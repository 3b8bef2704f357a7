"""The order of samples: a permutation in each epoch, the same by every way of asking for it."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from m5ws.data.order import Index, Order, sources_of
from m5ws.records.sample_ids import format_ranges, parse_ranges
from tests.datasets import reference
from tests.support.records.samples import samples_at

_COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any)


@given(_COUNTS, st.integers(-3, 2**65), st.integers(1, 10), st.integers(0, 3), st.data())
def test_an_order_equals_a_plain_shuffle_of_files_and_windows(
    counts: list[int], seed: int, window: int, epoch: int, data: st.DataObject
) -> None:
    order, expected = Order(counts, seed=seed, window=window), reference.order(counts, seed, window, epoch)
    assert sorted(expected) == [(file, row) for file, count in enumerate(counts) for row in range(count)]
    start = data.draw(st.integers(0, order.samples))
    stop = data.draw(st.integers(start, order.samples))
    files, rows = order.locate(epoch, start, stop)
    assert list(zip(files.tolist(), rows.tolist(), strict=True)) == expected[start:stop]
    for file, count in enumerate(counts):
        assert order.positions(epoch, file).tolist() == [at for at, item in enumerate(expected) if item[0] == file]
        for row in range(count + 1):
            found = order.positions(epoch, file, row).tolist()
            assert found == [at for at, item in enumerate(expected) if item == (file, row)]


def test_epochs_and_seeds_have_other_orders() -> None:
    orders = {
        (seed, epoch): tuple(map(tuple, Order([50] * 4, seed=seed, window=2).locate(epoch, 0, 200)))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == len(orders)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 20)), max_size=6))
def test_ranges_as_text_have_the_same_positions(ranges: list[tuple[int, int, int]]) -> None:
    def positions(items: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        return [(epoch, at) for epoch, start, stop in items for at in range(start, stop)]

    assert positions(parse_ranges(format_ranges(ranges))) == positions(ranges)


def test_a_described_source_returns_samples_of_positions_and_positions_of_files() -> None:
    index = Index(files=tuple(f"{number}.npy" for number in range(5)), counts=(3, 0, 4, 1, 6))
    assert Index.decode(index.encode()) == index
    described = {"name": "web", "dataset": "data/web", "folder": "data/web", "window": 2, "shuffle": True, "index": "d"}
    source = sources_of({"seed": 7, "sources": [described]}, {"d": index.encode()}.__getitem__)["web"]
    seen = samples_at(source, "0:0-9,0:9-14")
    assert sorted(seen) == sorted(
        (0, path, row) for path, count in zip(index.files, index.counts, strict=True) for row in range(count)
    )
    for path in index.files:
        ranges = source.positions_of(0, path)
        assert {(p, r) for _, p, r in samples_at(source, format_ranges(ranges))} == {
            (p, r) for _, p, r in seen if p == path
        }
    assert source.positions_of(0, "other.npy") == []


def test_reading_an_order_imports_no_torch() -> None:
    code = "import sys, m5ws.data.order; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_order_of_a_seed_never_changes() -> None:
    files, rows = Order([3, 2, 4], seed=1, window=2).locate(0, 0, 9)
    assert list(zip(files.tolist(), rows.tolist(), strict=True)) == reference.order([3, 2, 4], 1, 2, 0)
    assert np.array_equal(
        Order([3, 2, 4], seed=1, window=2, shuffle=False).locate(5, 0, 9)[1], [0, 1, 2, 0, 1, 0, 1, 2, 3]
    )
