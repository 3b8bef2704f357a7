"""The store fails at each moment of the last save: the attempt reports the loss, and the kept copy can be uploaded."""

from pathlib import Path
from typing import Any

import pytest

from m5ws.outputs import unsaved
from m5ws.records.ledger import CheckpointPublished, Notice
from m5ws.repository.fsck import fsck
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.ranks.loops import train
from tests.support.stores.passing_store import PassingStore

_STEPS = 3


class _Fails(PassingStore):
    """A store that fails from the operation after `moment` on, counted from `begin`; None: never."""

    def __init__(self, root: Path, moment: int | None) -> None:
        super().__init__(LocalStore(root), self._operation)
        self.moment = moment
        self.operations = -1

    def begin(self) -> None:
        self.operations = 0

    def _operation(self, operation: str, key: str) -> None:
        if self.operations >= 0:
            self.operations += 1
            if self.moment is not None and self.operations > self.moment:
                raise OSError(28, "No space left on device", f"{operation} {key}")


@pytest.fixture
def attempted(in_process: Any, repo: Repository) -> Any:
    def attempt(moment: int | None) -> tuple[Any, _Fails]:
        store = _Fails(Path(repo.store.url), moment)

        def at(step: int) -> None:
            if step == _STEPS:
                store.begin()

        in_process.runner.run = f"{0 if moment is None else moment + 1:012x}"
        in_process.runner.attempts = 0
        found, error = in_process(train(_STEPS, 1, at), repo=Repository.open(store))
        assert error is None
        return found, store

    return attempt


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_failed_last_save_causes_a_notice_and_is_stored_later(
    attempted: Any, in_process: Any, repo: Repository, every: int
) -> None:
    whole, store = attempted(None)
    assert _STEPS in whole.contents
    moments = range(0, store.operations, every)
    assert len(moments) > 5
    kept = 0
    for moment in moments:
        attempt, _ = attempted(moment)
        last = [e for e in attempt.events[0] if isinstance(e, CheckpointPublished | Notice)][-2:]
        run = in_process.runner.run
        if _STEPS in attempt.contents:
            assert checkpoints.names(repo, run)[-1] == checkpoints.name(_STEPS, 1)
            continue
        assert [getattr(e, "kind", "") for e in last] == ["save-failed", "checkpoint-kept"], moment
        kept += 1
        assert unsaved.publish(repo, run, 1, attempt.directory, lambda path: Repository.open(LocalStore(path)))
        name = checkpoints.valid(repo, run)[-1]
        assert checkpoints.find(repo, run, name)[1].content == whole.contents[_STEPS]
        unsaved.remove(attempt.directory)
        assert not unsaved.waiting(attempt.directory)
    assert kept > 3
    damage = [one for one in fsck.check(repo, read_data=True).damage if one.key.startswith("objects/")]
    assert [one for one in damage if "0" * 64 not in one.key] == []
