"""A follower that dies after its n-th write to MLflow, for every n: the next follower completes the page, once."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from mlflow import MlflowClient

from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow.follower import Follower
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written
from tests.support.records.mlflow_pages import page_content

_WRITES = ("create", "log", "set", "update", "finalize")


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


class MortalClient:
    """An MLflow client whose process ends right after its n-th write."""

    def __init__(self, client: MlflowClient, writes: int) -> None:
        self._client = client
        self.left = writes

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Any] = getattr(self._client, name)
        if not name.startswith(_WRITES):
            return call

        def counted(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            self.left -= 1
            if self.left == 0:
                raise Killed
            return result

        return counted


def _another(repo: Repository, run: Run) -> Run:
    other = written.publish_run(repo, run.snapshot, created_s=run.created_s)
    written.begin(repo, other)
    # More than one batch of 1,000 metrics.
    written.train(repo, other, range(1, 251))
    written.checkpoint(repo, other, 2)
    written.checkpoint(repo, other, 4)
    written.end(repo, other)
    return other


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_the_next_follower_completes_a_page_after_a_kill_at_any_write(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient, stride: int
) -> None:
    whole = _another(repo, run)
    Follower(tracker.options(whole.id, once=True)).advance(last=True)
    expected = page_content(client, whole)
    assert [step for step, _, _ in expected["metrics"]["m5ws/loss"]] == list(range(1, 251))
    assert len(expected["outputs"]) == 2
    for writes in itertools.count(1, stride):
        other = _another(repo, run)
        mortal = MortalClient(client, writes)
        try:
            Follower(tracker.options(other.id, once=True), lambda uri, mortal=mortal: mortal).advance(last=True)  # type: ignore[misc]
        except Killed:
            Follower(tracker.options(other.id, once=True)).advance(last=True)
            assert page_content(client, other) == expected, f"killed after write {writes}"
        else:
            break
    assert writes > 10


def test_a_follower_continues_after_any_failed_write(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    """The same process, whose MLflow fails after every write in turn, and which reads the ledger once."""
    whole = _another(repo, run)
    Follower(tracker.options(whole.id, once=True)).advance(last=True)
    other = _another(repo, run)
    lives = iter(range(1, 100))
    follower = Follower(tracker.options(other.id, once=True), lambda uri: MortalClient(client, next(lives)))
    failures = 0
    while True:
        try:
            follower.advance(last=True)
        except Killed:
            failures += 1
        else:
            break
    assert failures > 2
    assert page_content(client, other) == page_content(client, whole)
