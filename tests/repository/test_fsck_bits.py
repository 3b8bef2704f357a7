"""Every bit of a store matters: after any bit flip, `fsck` names the damaged object and no other."""

import random
import time
from pathlib import Path

import pytest

from m5ws.records.store import Format
from m5ws.repository.fsck import fsck
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.campaigns import soak_page
from tests.support.faults.bit_flips import Bits, Flip, Tally
from tests.support.records.filled_store import Scale, fill

_LARGE = Scale(
    large=60,
    large_bytes=2 * 2**20,
    small=4000,
    small_bytes=20_000,
    changed=40,
    snapshots=6,
    batches=30,
    saved_bytes=5 * 2**20,
)
_PASSES, _FLIPS = 10, 100
_HEADER = "| store | seed | objects | size | flips | of which in | named | not named | named wrongly | seconds |"
_LINE = "|---|---|---|---|---|---|---|---|---|---|"


def _filled(folder: Path, scale: Scale, seed: int) -> Repository:
    repo = Repository.create(LocalStore(folder / "store", durable=False), Format())
    fill(repo, folder / "files", scale, seed)
    assert fsck.check(repo).clean
    return repo


def test_a_flipped_bit_in_any_kind_of_file_is_named(tmp_path: Path) -> None:
    repo, draw, tally = _filled(tmp_path, Scale(), seed=1), random.Random(1), Tally()
    bits = Bits(repo)
    for _ in range(60):
        bits.check(bits.draw(draw, len(bits.sizes)), tally)
    assert (tally.missed, tally.accused) == ([], [])
    assert set(tally.flips) == {"chunks and packs", "records", "references, plans, format", "ledger batches"}
    assert fsck.check(repo).clean


def test_random_flipped_bits_of_a_larger_store_are_each_named(tmp_path: Path) -> None:
    scale = Scale(large=2, large_bytes=2**21, small=300, small_bytes=20_000, changed=20, snapshots=3, batches=10)
    bits, draw, tally = Bits(_filled(tmp_path, scale, seed=2)), random.Random(2), Tally()
    for _ in range(3):
        bits.check(bits.draw(draw, 30), tally)
    assert (tally.missed, tally.accused) == ([], [])
    assert tally.flips.total() == 90


@pytest.fixture(scope="module")
def rows() -> "dict[str, str]":
    """Lines of the table in docs/soak.md."""
    return {}


def _write(rows: dict[str, str], name: str, seed: int, bits: Bits, tally: Tally, began_s: float) -> None:
    """Add a line to the table, which is written when both lines exist."""
    where = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.flips.items()))
    total = tally.flips.total()
    size = f"{bits.size_bytes / 2**20:,.1f} MiB" if bits.size_bytes > 2**20 else f"{bits.size_bytes:,} B"
    counts = (f"{total:,}", where, f"{total - len(tally.missed):,}", len(tally.missed), len(tally.accused))
    cells = (name, seed, f"{len(bits.sizes):,}", size, *counts, f"{time.monotonic() - began_s:.0f}")
    rows[name] = "| " + " | ".join(map(str, cells)) + " |"
    print(rows[name])
    if len(rows) == 2:
        soak_page.write("flips", [_HEADER, _LINE, *rows.values()])


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_every_single_bit_of_a_small_store_is_named(tmp_path: Path, rows: dict[str, str]) -> None:
    began_s, seed = time.monotonic(), random.SystemRandom().randrange(10**6)
    bits, tally = Bits(_filled(tmp_path, Scale(), seed)), Tally()
    for key, size in sorted(bits.sizes.items()):
        for bit in range(8 * size):
            bits.check([Flip(key, bit)], tally)
    _write(rows, "small, each bit alone", seed, bits, tally, began_s)
    assert (tally.missed, tally.accused) == ([], [])
    assert tally.flips.total() == 8 * bits.size_bytes


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_random_bits_of_a_large_store_are_each_named(tmp_path: Path, rows: dict[str, str]) -> None:
    began_s, seed = time.monotonic(), random.SystemRandom().randrange(10**6)
    bits, draw, tally = Bits(_filled(tmp_path, _LARGE, seed)), random.Random(seed), Tally()
    assert bits.size_bytes >= 200 * 2**20
    for _ in range(_PASSES):
        bits.check(bits.draw(draw, _FLIPS), tally)
    _write(rows, f"large, {_FLIPS} at a time", seed, bits, tally, began_s)
    assert (tally.missed, tally.accused) == ([], [])
    assert tally.flips.total() == _PASSES * _FLIPS
