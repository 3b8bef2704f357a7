"""Saves in parallel to the training: the saved state belongs to its step, whatever later steps do."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from m5ws.errors import Fenced
from m5ws.records.launch import Saving
from m5ws.records.ledger import CheckpointPublished, Step
from m5ws.repository.repository import Repository
from m5ws.store.interface import Buffer
from m5ws.store.local import LocalStore
from tests.support.ranks.loops import train
from tests.support.records import planted


class Gated(LocalStore):
    """A directory that stores nothing new while its gate is shut, and fails for a given number of times."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0

    def create(self, key: str, data: Buffer) -> None:
        assert self.gate.wait(60)
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        super().create(key, data)


@pytest.fixture
def gated(store: LocalStore) -> Iterator[Gated]:
    found = Gated(store.root)
    yield found
    found.gate.set()


def test_a_save_beside_the_training_stores_the_state_of_its_step(in_process: Any, gated: Gated) -> None:
    whole, _ = in_process(train(6, 2), saving=Saving(asynchronous=False))

    def at(step: int) -> None:
        if step == 2:
            gated.gate.clear()
        if step == 4:
            gated.gate.set()

    attempt, error = in_process(train(6, 2, at), repo=Repository.open(gated))
    assert error is None
    events = attempt.events[0]
    published = next(event for event in events if isinstance(event, CheckpointPublished))
    third = next(event for event in events if isinstance(event, Step) and event.step == 3)
    assert published.step == 2 and events.index(published) > events.index(third)
    assert attempt.contents == whole.contents and list(whole.contents) == [2, 4, 6]


def test_a_checkpoint_waits_for_the_earlier_save_and_leaves_a_notice(in_process: Any, gated: Gated) -> None:
    def at(step: int) -> None:
        if step == 2:
            gated.gate.clear()
        if step == 4:
            threading.Timer(1.5, gated.gate.set).start()

    attempt, error = in_process(train(5, 2, at), repo=Repository.open(gated))
    assert error is None and list(attempt.contents) == [2, 4, 5]
    (notice,) = attempt.notices("checkpoint-waited")
    assert "after step 4" in notice
    assert [event.stalled_s > 1 for event in attempt.of(CheckpointPublished)][:2] == [False, True]


def test_a_save_that_fails_is_a_notice_and_tried_again(in_process: Any, gated: Gated) -> None:
    def at(step: int) -> None:
        gated.failures = 1 if step == 2 else gated.failures

    attempt, error = in_process(train(3, 2, at), repo=Repository.open(gated))
    assert error is None
    assert list(attempt.contents) == [2, 3]
    (notice,) = attempt.notices("save-failed")
    assert "after step 2" in notice and "No space left" in notice


def test_an_attempt_superseded_during_a_save_ends(in_process: Any, gated: Gated) -> None:
    runner = in_process.runner

    def at(step: int) -> None:
        if step == 2:
            planted.begin(runner.repo, runner.run, 2)

    attempt, error = in_process(train(1000, 2, at), repo=Repository.open(gated))
    assert isinstance(error, Fenced)
    assert not attempt.contents and len(attempt.of(Step)) < 1000


def test_a_clock_triggers_checkpoints_and_a_replay_saves_the_steps_of_its_original(in_process: Any) -> None:
    attempt, _ = in_process(train(3, None), minutes=1e-9)
    assert list(attempt.contents) == [1, 2, 3]
    replay, _ = in_process(train(3, None), minutes=1e-9, checkpoint_at=(2,))
    assert list(replay.contents) == [2, 3]
    assert replay.contents[2] == attempt.contents[2]
    rarely, _ = in_process(train(3, None), minutes=1e9)
    assert list(rarely.contents) == [3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_ends_the_training_with_a_checkpoint(in_process: Any, number: int) -> None:
    def at(step: int) -> None:
        if step == 2:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # as torchrun does once more

    attempt, error = in_process(train(100, None, at))
    assert isinstance(error, SystemExit) and error.code == 128 + number
    assert list(attempt.contents) == [2]


@pytest.mark.parametrize("every", [None, 2], ids=["itself", "the checkpoint before"])
def test_a_last_checkpoint_that_takes_too_long_is_given_up(in_process: Any, gated: Gated, every: int | None) -> None:
    def at(step: int) -> None:
        if step == 2:
            gated.gate.clear()
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    attempt, error = in_process(train(100, every, at), repo=Repository.open(gated), saving=Saving(deadline_s=0.2))
    assert isinstance(error, SystemExit) and error.code == 143
    assert not attempt.contents
    (notice,) = attempt.notices("save-failed")
    assert "abandoned" in notice
