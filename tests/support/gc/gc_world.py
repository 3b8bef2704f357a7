"""Writers and gc on one store, and a model of its required content, for schedules of single operations."""

from collections.abc import Callable, Sequence

from m5ws.errors import M5Error
from m5ws.records.environment import Observed
from m5ws.records.gc import RetentionRules
from m5ws.records.snapshot import Snapshot
from m5ws.records.store import Format
from m5ws.records.tree import Tree
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.gc_plans import RetryPolicy
from m5ws.repository.publishing import ObjectDeleted, repeated
from m5ws.repository.repository import Repository
from m5ws.store.interface import ObjectStore
from tests.support.gc.turns import Actor, Serial, TurnStore
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

Lie = Callable[[ObjectStore], ObjectStore]
"""Wraps an actor's store, to break one step of the protocol by its return values."""


def honest(store: ObjectStore) -> ObjectStore:
    return store


def upload(repo: Repository, contents: Sequence[bytes]) -> Snapshot:
    """Make files and their tree durable, as `snapshot` does, and return the snapshot without publishing."""
    files = {b"%04d" % place: content for place, content in enumerate(contents)}
    if repo.format.small_bytes > 1:
        return planted.snapshot(planted.packed(repo, files))
    entries = [planted.file(repo.objects, path, content) for path, content in files.items()]
    tree = repo.objects.put_record(Tree(entries=tuple(entries)))
    return planted.snapshot(tree)


def publish(repo: Repository, contents: Sequence[bytes]) -> str:
    """Upload and publish a snapshot of these contents, with retries after gc, and return its id."""

    def attempt() -> str:
        observed = repo.objects.put_record(Observed(facts={"machine": str(len(contents) % 2)}))
        return planted.publish(repo, upload(repo, contents), observed=observed)

    while True:
        try:
            return repeated(attempt)
        except ObjectDeleted:
            continue


class World:
    """A store, its published snapshots, and actors.

    `returned` maps each published snapshot to all objects it needs. Files are in packs, or large if not `packed`, which
    takes fewer operations.
    """

    def __init__(self, writers_lie: Lie = honest, gc_lies: Lie = honest, *, packed: bool = True) -> None:
        self.store = MemoryStore()
        self.repo = Repository.create(self.store, Format() if packed else Format(small_bytes=1))
        self.returned: dict[str, set[str]] = {}
        self.expected: dict[str, set[str]] = {}
        self.began: dict[str, int] = {}
        self.failures: list[str] = []
        self._lies = (writers_lie, gc_lies)
        self._holders = 0

    def needs(self, contents: Sequence[bytes]) -> set[str]:
        """Return the keys that a snapshot of these contents needs, by the model, not by the store."""
        model = Repository(MemoryStore(), self.repo.format)
        snapshot = publish(model, contents)
        needed = {stat.key for stat in model.store.list("objects/")}
        self.expected[snapshot] = needed
        return needed

    def writer(self, name: str, jobs: Sequence[tuple[Sequence[bytes], bool]]) -> Actor:
        """Start an actor that publishes the contents of each job, or only uploads them."""

        def act(actor: Actor) -> None:
            for contents, whole in jobs:
                # A separate process for each job.
                repo = Repository(self._lies[0](TurnStore(self.store, actor)), self.repo.format)
                repo.patience = RetryPolicy(limit_s=1e9, pause=actor.pause)
                if whole:
                    needed = self.needs(contents)
                    self.returned[publish(repo, contents)] = needed
                else:
                    upload(repo, contents)
                self.began[actor.name] = self.began.get(actor.name, 0) + 1

        return Actor(name, act)

    def gc(self, name: str, rounds: int, grace: Callable[[Actor], None]) -> Actor:
        """Start an actor that plans and executes `rounds` times. `grace` is called in between."""

        def act(actor: Actor) -> None:
            for _ in range(rounds):
                repo = Repository(self._lies[1](TurnStore(self.store, actor)), self.repo.format)
                try:
                    planned = gc.plan(repo, RetentionRules(), 0.0, workers=Serial, part_objects=3)
                    if planned.id is not None:
                        grace(actor)
                        execute.execute(repo, planned.id, name, grace_s=0.0, workers=Serial)
                except M5Error as error:
                    # A late writer is still repairing a reference; then gc deletes nothing.
                    self.failures.append(str(error))

        return Actor(name, act)

    def broken(self) -> list[str]:
        """Return the missing objects of snapshots whose publication has returned."""
        return sorted(need for needed in self.returned.values() for need in needed if need not in self.store.objects)

    def missing(self, reference: str) -> set[str]:
        """Return the missing objects of the snapshot of a reference."""
        return self.expected[reference.split("/")[1]] - self.store.objects.keys()

    def settle(self) -> None:
        """Execute open plans, then plan and execute again, until nothing can be deleted."""
        while (due := execute.due(self.repo, 0.0)) is not None:
            execute.execute(self.repo, due.plan, "settling", grace_s=0.0, take_over=True, workers=Serial)
        while (planned := gc.plan(self.repo, RetentionRules(), 0.0, workers=Serial)).id is not None:
            execute.execute(self.repo, planned.id, "settling", grace_s=0.0, workers=Serial)

    def ends_well(self) -> None:
        """Assert that everything published exists and nothing else does, and that fsck agrees."""
        assert not self.broken()
        self.settle()
        needed = set().union(*self.returned.values())
        left = {stat.key for stat in self.store.list("objects/")}
        assert left == needed
        report = fsck.check(self.repo)
        assert report.clean, report.damage
        assert report.unreachable == 0
