"""Writers and gc, interleaved at every store operation: no published object is ever lost.

A seed determines a schedule, except for the random ends of names. `test_a_broken_protocol_is_found` breaks one step of
the protocol at a time, with stores that answer as if the step were done at another moment. It shows that these
schedules detect each break.
"""

import random
from collections.abc import Iterator

import pytest

from m5ws.store.interface import Buffer, ObjectStat
from tests.support.gc.gc_world import Lie, World, honest
from tests.support.gc.turns import Actor
from tests.support.stores.passing_store import PassingStore

_CONTENTS = [bytes([65 + number]) * 10 for number in range(5)]


def _no_grace(actor: Actor) -> None:
    """Execute at once: a writer between two operations has paused for the whole grace period."""


def _schedule(seed: int, world: World, *, graceful: bool) -> None:
    """Run one schedule to its end. Raises AssertionError if a published snapshot is incomplete."""
    draw = random.Random(seed)
    actors: list[Actor] = []

    def grace(actor: Actor) -> None:
        """Wait until every writer has finished the work in progress when the plan was published."""
        before = dict(world.began)
        while any(
            not other.ended and other.name in before and world.began[other.name] == before[other.name]
            for other in actors
        ):
            actor.pause(1.0)

    for number in range(3):
        world.began[f"writer {number}"] = 0
        jobs = [(draw.sample(_CONTENTS, draw.randint(1, 3)), draw.random() < 0.7) for _ in range(draw.randint(1, 3))]
        actors.append(world.writer(f"writer {number}", jobs))
    actors += [world.gc(f"gc {number}", 2, grace if graceful else _no_grace) for number in range(2)]
    try:
        _play(draw, world, actors, graceful=graceful)
    finally:
        for actor in actors:
            actor.kill()
    for actor in actors:
        if actor.error is not None:
            raise actor.error


def _play(draw: random.Random, world: World, actors: list[Actor], *, graceful: bool) -> None:
    weights = {actor.name: draw.choice([1, 1, 5, 25]) for actor in actors}
    while alive := [actor for actor in actors if not actor.ended]:
        actor = draw.choices(alive, [weights[actor.name] for actor in alive])[0]
        if draw.random() < 0.02:
            weights[actor.name] = draw.choice([1, 1, 5, 25])
        doing = actor.doing
        actor.step()
        if doing.startswith(("delete objects", "create snapshots")):
            assert not world.broken()
            if graceful:
                _all_whole(world)


def _all_whole(world: World) -> None:
    """With the grace period, every reference is complete from its creation on."""
    for key in [key for key in world.store.objects if key.startswith("snapshots/")]:
        assert not world.missing(key)


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_gc_deletes_no_published_object(seed: int, graceful: bool) -> None:
    world = World(packed=seed % 2 == 0)
    _schedule(seed, world, graceful=graceful)
    world.ends_well()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("graceful", [True, False])
def test_gc_deletes_no_published_object_in_thousands_of_schedules(graceful: bool) -> None:
    for seed in range(100, 5100):
        world = World(packed=seed % 2 == 0)
        _schedule(seed, world, graceful=graceful)
        world.ends_well()


class KeepsReadTooEarly(PassingStore):
    """X2 before X1: keeps are read before the plan is marked as being executed."""

    def create(self, key: str, data: Buffer) -> None:
        self._early: list[ObjectStat] | None = None
        if key.endswith(".executing"):
            self._early = list(self._inner.list(key.removesuffix(".executing") + "/keep/"))
        self._inner.create(key, data)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        early = getattr(self, "_early", None)
        return iter(early) if prefix.endswith("/keep/") and early is not None else self._inner.list(prefix)


class RootsReadTooEarly(PassingStore):
    """X3 before X1: the roots were read before the plan was published."""

    def create(self, key: str, data: Buffer) -> None:
        if key.endswith(".plan"):
            self._early = self._inner.names("snapshots/")
        self._inner.create(key, data)

    def names(self, prefix: str) -> tuple[str, ...]:
        early = getattr(self, "_early", None)
        return early if prefix == "snapshots/" and early is not None else self._inner.names(prefix)


class NothingIsKept(PassingStore):
    """W2 without keeps: the writer does not publish the objects it is about to name."""

    def create(self, key: str, data: Buffer) -> None:
        if "/keep/" not in key:
            self._inner.create(key, data)


class LooksBeforeItKeeps(PassingStore):
    """W2 in the wrong order: the state of the plan is read before the keep exists."""

    _last: tuple[str, ...] = ()
    _said = False

    def create(self, key: str, data: Buffer) -> None:
        self._inner.create(key, data)
        self._said = "/keep/" in key

    def names(self, prefix: str) -> tuple[str, ...]:
        said, self._said = self._said, False
        if prefix != "gc/":
            return self._inner.names(prefix)
        if not said:
            self._last = self._inner.names(prefix)
        return self._last


class DoesNotLookAgain(PassingStore):
    """W5 omitted: the plans after the reference are assumed to be the plans before it."""

    _last: tuple[str, ...] = ()

    def create(self, key: str, data: Buffer) -> None:
        self._inner.create(key, data)
        self._blind = key.startswith("snapshots/")

    def names(self, prefix: str) -> tuple[str, ...]:
        if prefix == "gc/" and getattr(self, "_blind", False):
            return self._last
        found = self._inner.names(prefix)
        if prefix == "gc/":
            self._last = found
        return found


class ForgetsWhatIsDone(PassingStore):
    """W0 omitted: a plan that is done when the writer looks counts as harmless."""

    def names(self, prefix: str) -> tuple[str, ...]:
        found = self._inner.names(prefix)
        if prefix != "gc/":
            return found
        done = {name.removesuffix(".done") for name in found if name.endswith(".done")}
        met: set[str] = getattr(self, "_met", set())
        self._met = met | {name.split(".")[0] for name in found if name.endswith(".executing")} - done
        return tuple(name for name in found if name.split(".")[0] not in done - met)


class WaitsForNobody(PassingStore):
    """W3 omitted: a plan in execution counts as done."""

    def names(self, prefix: str) -> tuple[str, ...]:
        found = self._inner.names(prefix)
        executing = [name for name in found if prefix == "gc/" and name.endswith(".executing")]
        return tuple(sorted({*found, *(name.replace(".executing", ".done") for name in executing)}))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("writers_lie", "gc_lies", "graceful"),
    [
        (honest, KeepsReadTooEarly, False),
        (honest, RootsReadTooEarly, True),
        (NothingIsKept, honest, False),
        (LooksBeforeItKeeps, honest, False),
        (DoesNotLookAgain, honest, False),
        (ForgetsWhatIsDone, honest, False),
        (WaitsForNobody, honest, False),
    ],
)
def test_a_broken_protocol_is_found(writers_lie: Lie, gc_lies: Lie, graceful: bool) -> None:
    for seed in range(2000):
        world = World(writers_lie, gc_lies, packed=False)
        try:
            _schedule(seed, world, graceful=graceful)
            world.ends_well()
        except AssertionError:
            return
    pytest.fail("no schedule found it")
