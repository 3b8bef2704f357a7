"""A checkpoint whose publication paused for a grace period of gc: the state is still in memory, and is saved again."""

from pathlib import Path

from m5ws.records.gc import RetentionRules
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.records import planted
from tests.support.stores.sleeping_store import SleepingStore
from tests.training.test_crash import _RUN, _save


def test_a_checkpoint_that_slept_through_a_grace_period_is_saved_again(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    tree = trees.write_tree(repo.objects, list[SourceFile]()).digest
    planted.run(repo, _RUN, planted.publish(repo, planted.snapshot(tree)))

    def meanwhile() -> None:
        plan = gc.plan(repo, RetentionRules(), 0.0)
        done = execute.execute(repo, str(plan.id), "lock", grace_s=0.0)
        assert done.objects > 2

    asleep = SleepingStore(repo.store, f"runs/{_RUN}/checkpoints/", meanwhile)
    assert _save(Repository(asleep, repo.format), tmp_path)
    assert asleep.slept and checkpoints.valid(repo, _RUN) == []
    assert checkpoints.names(repo, _RUN) == [checkpoints.name(1, 1)]
    assert fsck.check(repo).clean
