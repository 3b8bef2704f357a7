"""Existence of many objects: always correct, with few requests."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.errors import CorruptObject, NotFound
from m5ws.records.store import Format
from m5ws.repository import presence
from m5ws.repository.objects import Objects, key
from m5ws.store.interface import Buffer, ObjectStat


class Counting:
    """`ObjectStore` with names and lengths only, which counts requests. A listing has pages of 1000."""

    url = "counting"

    def __init__(self, held: dict[str, int]) -> None:
        self.held = {key(digest): size for digest, size in sorted(held.items())}
        self.by_prefix: dict[str, list[str]] = {}
        for name in self.held:
            self.by_prefix.setdefault(name[: len("objects/ab/")], []).append(name)
        self.requests = 0

    def stat(self, key: str) -> ObjectStat | None:
        self.requests += 1
        size = self.held.get(key)
        return None if size is None else ObjectStat(key=key, size_bytes=size, modified_s=0.0)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        for position, name in enumerate(self.held if prefix == "objects/" else self.by_prefix.get(prefix, ())):
            if position % 1000 == 0:
                self.requests += 1
            yield ObjectStat(key=name, size_bytes=self.held[name], modified_s=0.0)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        raise NotFound(key)

    def create(self, key: str, data: Buffer) -> None:
        raise AssertionError("nothing is written to find out")

    def names(self, prefix: str) -> tuple[str, ...]:
        assert prefix == "gc/", "names tell no lengths"
        return ()

    def delete(self, key: str) -> None:
        raise AssertionError("nothing is deleted to find out")

    def now(self) -> float:
        raise AssertionError("the clock of the store is not read")


def _digests(first: int, count: int, step: int = 1) -> list[str]:
    """Return digests spread over the prefixes like real digests."""
    return [
        f"{(number * 2654435761) % 2**32:08x}".ljust(64, "0") for number in range(first, first + count * step, step)
    ]


def _ask(held: dict[str, int], needs: dict[str, int]) -> tuple[set[str], int]:
    store = Counting(held)
    return presence.missing(Objects(store, Format()), needs), store.requests


@settings(max_examples=200)
@given(st.sets(st.integers(0, 5000)), st.sets(st.integers(0, 5000)), st.integers(1, 40))
def test_missing_objects_are_the_needed_objects_that_are_not_stored(
    held: set[int], needed: set[int], factor: int
) -> None:
    names = _digests(0, 5001)
    # Under few prefixes, so that listings are used too.
    short = [f"{number % factor:02x}{name[2:]}" for number, name in enumerate(names)]
    there = {short[number]: 7 for number in held}
    needs = {short[number]: 7 for number in needed}
    found, _ = _ask(there, needs)
    assert found == needs.keys() - there.keys()


def test_an_object_with_another_length_is_damage() -> None:
    for count in (1, 3000):
        digests = _digests(0, count)
        with pytest.raises(CorruptObject, match=f"{digests[0]}.* 6 bytes .*7"):
            _ask(dict.fromkeys(digests, 7) | {digests[0]: 6}, dict.fromkeys(digests, 7))


@pytest.mark.parametrize(
    ("held", "needed", "most"),
    [(0, 10_000, 256), (10_000, 10_000, 256), (200_000, 10_000, 512), (300_000, 100, 106), (300_000, 3_000, 3_800)],
)
def test_the_number_of_presence_requests_is_bounded(held: int, needed: int, most: int) -> None:
    there, needs = dict.fromkeys(_digests(0, held), 7), dict.fromkeys(_digests(held - needed // 2, needed), 7)
    found, requests = _ask(there, needs)
    assert found == needs.keys() - there.keys()
    assert requests <= most
