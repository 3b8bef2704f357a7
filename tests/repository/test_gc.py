"""The plans and deletions of gc, in all parts.

Includes a gc killed after any write, and writers that pause too long.
"""

import itertools
from pathlib import Path

import pytest

from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.environment import Observed
from m5ws.records.gc import RetentionRules
from m5ws.records.ledger import NODE, AttemptStarted, NodeStarted
from m5ws.records.run import LaunchSpec
from m5ws.repository import gc_plans, publishing
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.ledger import ledger
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot import snapshot
from m5ws.snapshot.config import overrides
from tests.support.gc.gc_world import publish, upload
from tests.support.gc.turns import Serial
from tests.support.records import planted
from tests.support.stores.dying_store import Died, DyingStore
from tests.support.stores.memory_store import MemoryStore
from tests.support.stores.sleeping_store import SleepingStore
from tests.support.workspace.workspaces import make_workspace

RUN = "a" * 12


def _collect(repo: Repository, rules: RetentionRules | None = None) -> None:
    """Plan and execute, without grace period, until there is nothing to delete."""
    while (due := execute.due(repo, 0.0)) is not None:
        execute.execute(repo, due.plan, "lock", grace_s=0.0)
    while (plan := gc.plan(repo, rules or RetentionRules(), 0.0).id) is not None:
        execute.execute(repo, plan, "lock", grace_s=0.0)


def _filled() -> Repository:
    """Return a store with two snapshots, a run with three checkpoints, and unpublished objects."""
    repo = Repository.create(MemoryStore())
    first = publish(repo, [b"a", b"b"])
    publish(repo, [b"b", b"c"])
    upload(repo, [b"c", b"left", b"left too"])
    planted.run(repo, RUN, first)
    for step in (1, 2, 3):
        planted.checkpoint(repo, RUN, step, Content(format="dcp/1", world=step))
    planted.begin(repo, RUN, inherits=tuple(checkpoints.name(step, 1) for step in (1, 2, 3)))
    return repo


@pytest.mark.parametrize("part_objects", [1, 2, 100])
def test_a_plan_lists_exactly_the_unneeded_objects_in_bounded_parts(part_objects: int) -> None:
    repo = _filled()
    unreachable = fsck.check(repo).unreachable
    planned = gc.plan(repo, RetentionRules(last=2), 0.0, part_objects=part_objects)
    assert planned.id is not None
    head = gc_plans.head(repo.store, planned.id)
    assert head == planned.plan
    assert [one.checkpoint for one in gc_plans.retired(repo.store, planned.id, head)] == [checkpoints.name(1, 1)]
    named = [
        digest
        for number in range(len(head.parts))
        for digest in gc_plans.split(gc_plans.garbage(repo.store, planned.id, head, number).digests)
    ]
    assert named == sorted(named) and len(named) == head.objects == unreachable + 2
    assert all(part.objects <= part_objects for part in head.parts)
    sizes = [stat.size_bytes for stat in repo.store.list("objects/") if bytes.fromhex(stat.key[-64:]) in named]
    assert head.size_bytes == sum(sizes)
    assert [(one.run, one.checkpoints, one.copies) for one in head.freed] == [(RUN, 1, 0)]


def test_no_plan_is_published_if_nothing_can_be_deleted() -> None:
    repo = _filled()
    _collect(repo)
    before = repo.store.names("gc/")
    assert gc.plan(repo, RetentionRules(), 0.0).id is None
    assert gc_plans.read_states(repo.store).open == frozenset() and set(before) <= set(repo.store.names("gc/"))


def test_objects_younger_than_the_given_age_stay() -> None:
    repo = _filled()
    young = repo.objects.put(b"young")
    # The store's clock counts creates: gc's own object is created right after `young`, all other objects before.
    planned = gc.plan(repo, RetentionRules(), 1.5)
    assert planned.plan.young_objects == 1 and planned.plan.objects > 0
    execute.execute(repo, str(planned.id), "lock", grace_s=0.0)
    assert repo.objects.has(young)


class _DyingToo(DyingStore):
    """Dies also at deletes."""

    def delete(self, key: str) -> None:
        if self.lives <= 0:
            raise Died(key)
        super().delete(key)
        self.lives -= 1


def test_gc_survives_a_crash_after_every_single_write_and_delete() -> None:
    for lives in itertools.count():
        repo = _filled()
        published = {stat.key for stat in repo.store.list("snapshots/")}
        dying = Repository(_DyingToo(repo.store, lives), repo.format)
        died = False
        try:
            planned = gc.plan(dying, RetentionRules(last=1), 0.0, part_objects=2, workers=Serial)
            execute.execute(dying, str(planned.id), "lock", grace_s=0.0, workers=Serial)
        except Died:
            died = True
        assert fsck.check(repo).clean
        _collect(repo, RetentionRules(last=1))
        report = fsck.check(repo)
        assert report.clean and report.unreachable == 0
        assert checkpoints.names(repo, RUN) == [checkpoints.name(3, 1)]
        assert {stat.key for stat in repo.store.list("snapshots/")} == published
        if not died:
            assert lives > 15
            return


def test_a_writer_that_slept_through_a_grace_period_repairs_its_snapshot(tmp_path: Path) -> None:
    from m5ws.store.local import LocalStore
    from m5ws.workspace import find

    here = find(make_workspace(tmp_path / "w", "plain.py").root)
    repo = Repository.create(LocalStore(tmp_path / "store"))
    asleep = SleepingStore(repo.store, "snapshots/", lambda: _collect(repo))
    ports = (here.source(), here.datasets(), here.tokenizers(), here.observer(), tmp_path / "index")
    taken = snapshot.take(here.root, here.settings, Repository(asleep, repo.format), *ports)
    assert asleep.slept and snapshots.ids(repo) == [taken.id]
    assert fsck.check(repo).clean
    late = SleepingStore(repo.store, "snapshots/", lambda: _collect(repo))
    derived = overrides.change(Repository(late, repo.format), taken.id, LaunchSpec(command=()), ["steps=7"])[0]
    assert late.slept and set(snapshots.ids(repo)) == {taken.id, derived}
    assert fsck.check(repo).clean


def test_an_attempt_that_begins_during_a_deletion_restores_its_objects() -> None:
    repo = _filled()
    observed = Observed(facts={"machine": "another"})
    asleep = Repository(SleepingStore(repo.store, f"runs/{RUN}/ledger/", lambda: _collect(repo)), repo.format)
    planted.append(repo, RUN, 2, NODE, AttemptStarted(attempt=2, host="h"))
    started = NodeStarted(node=0, host="h", observed=asleep.objects.put_record(observed))
    writer = ledger.ChainWriter(asleep, RUN, 2)
    writer.append({NODE: [codec.encode(started)]}, repair=lambda: asleep.objects.put_record(observed))
    assert writer.seq == 2 and fsck.check(repo).clean
    assert repo.objects.get_record(started.observed, Observed) == observed


def test_a_writer_gives_up_after_its_time_limit_and_publishes_nothing() -> None:
    repo = _filled()
    plan = str(gc.plan(repo, RetentionRules(), 0.0).id)
    repo.store.create(gc_plans.state_key(plan, "executing"), b"never ends")
    # Another process has not seen that the plan is done, so it waits.
    other = Repository(repo.store, repo.format)
    other.patience = gc_plans.RetryPolicy(limit_s=0.0, pause=lambda _: None)
    before = list(repo.store.list("snapshots/"))
    with pytest.raises(publishing.DeletionInProgress, match=plan):
        publish(other, [b"left"])
    assert list(repo.store.list("snapshots/")) == before
    # Objects outside the plan are published at once.
    publish(other, [b"quite new"])


def test_a_publication_without_plans_lists_the_plan_folder_three_times() -> None:
    asked: list[str] = []

    class Asked(MemoryStore):
        def names(self, prefix: str) -> tuple[str, ...]:
            asked.append(prefix)
            return super().names(prefix)

    publish(Repository.create(Asked()), [b"a"])
    assert asked.count("gc/") == 3


def test_a_writer_checks_every_object_if_a_part_of_a_plan_is_lost() -> None:
    repo = _filled()
    writer = Repository(repo.store, repo.format)
    needed = upload(writer, [b"left"])
    _collect(repo)
    (plan,) = gc_plans.read_states(repo.store).done
    for stat in list(repo.store.list(gc_plans.folder(plan))):
        repo.store.delete(stat.key)
    repo.store.delete(gc_plans.state_key(plan, "plan"))
    assert not repo.objects.has(needed.code.tree)
    assert snapshots.ids(repo)
    with pytest.raises(publishing.ObjectDeleted):
        publishing.publish(writer, lambda: gc_plans.packed([needed.code.tree]), lambda: None, run=None)
    assert repo.store.stat(key(needed.code.tree)) is None
