"""A removal is a fence: other verbs run at every write of a verb, and no result disappears or returns without a word.

`test_a_writer_that_does_not_read_removals_is_found` shows that these schedules detect a broken protocol.
"""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from m5ws.repository.removals import PREFIX
from m5ws.store.interface import ObjectStore
from tests.support.gc.removal_world import RemovalWorld, Wrap
from tests.support.stores.passing_store import PassingStore

Moment = tuple[int, str]
"""A verb, and the pause of the verb around it at which it runs."""
_WRITES = ("create", "delete")
_VERBS = ("resume", "fork", "reproduce", "rm", "gc", "push", "pull", "rm team")


def _play(world: RemovalWorld, outer: str, moments: list[Moment], break_: Wrap = lambda store: store) -> bool:
    """Run a verb, the first of `moments` at a pause of it, and the rest at pauses of that verb.

    A pause is before each write, and before the operation after each write. Return True if all moments came.
    """
    pauses, is_after_write = 0, False
    came = not moments

    def before(operation: str, _key: str) -> None:
        nonlocal pauses, is_after_write, came
        is_pause = operation in _WRITES or is_after_write
        is_after_write = operation in _WRITES
        if is_pause and moments:
            if pauses == moments[0][0]:
                pauses += 1
                came = _play(world, moments[0][1], moments[1:], break_)
                world.wrap = wrap
            pauses += 1

    def wrap(store: ObjectStore) -> ObjectStore:
        return PassingStore(break_(store), before)

    world.wrap = wrap
    world.verbs()[outer]()
    return came


def _schedules(before: list[str], outer: str, inner: str, break_: Wrap = lambda store: store) -> Iterator[RemovalWorld]:
    """Yield the world after each schedule: the verbs `before`, then `inner` at each pause of `outer`."""
    for pause in range(10_000):
        world = RemovalWorld()
        for verb in before:
            world.verbs()[verb]()
        came = _play(world, outer, [(pause, inner)], break_)
        yield world
        if not came:
            return


@pytest.mark.parametrize("verb", [verb for verb in _VERBS if verb != "rm"])
def test_a_removal_meets_every_other_verb_at_each_of_its_writes(verb: str) -> None:
    for outer, inner in ((verb, "rm"), ("rm", verb)):
        for world in _schedules(["push"] if verb in ("pull", "rm team") else [], outer, inner):
            world.ends_well()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_all_verbs_meet_each_other_at_each_of_their_writes(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    schedules = 0
    for before in ([], ["push"], ["rm"], ["reproduce"], ["fork", "push"], ["reproduce", "push", "rm team"]):
        for outer in _VERBS:
            for inner in _VERBS:
                for world in _schedules(before, outer, inner):
                    world.ends_well()
                    counts += world.counts
                    schedules += 1
    draw = random.Random(1)
    for _ in range(20_000):
        world = RemovalWorld()
        for _ in range(draw.randint(0, 3)):
            world.verbs()[draw.choice(_VERBS)]()
        moments = [(draw.randint(0, 40), draw.choice(_VERBS)) for _ in range(draw.randint(1, 4))]
        _play(world, draw.choice(_VERBS), moments)
        world.ends_well()
        counts += world.counts
        schedules += 1
    with capsys.disabled():
        print(
            f"\n{schedules:,} schedules", *(f"{name}: {number:,}" for name, number in sorted(counts.items())), sep="\n"
        )


class _Blind(PassingStore):
    """Returns no removal."""

    def names(self, prefix: str) -> tuple[str, ...]:
        return () if prefix == PREFIX else self._inner.names(prefix)


@pytest.mark.parametrize("verb", ["resume", "fork", "reproduce"])
def test_a_writer_that_does_not_read_removals_is_found(verb: str) -> None:
    faults = (fault for world in _schedules([], verb, "rm", _Blind) for fault in world.broken)
    assert "a publication did not meet a removal" in faults
