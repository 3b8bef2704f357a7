"""Copies of checkpoints on local disks: a restart reads them or completes their upload, and never mixes two steps."""

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m5ws.agent.delivery import Delivery
from m5ws.errors import M5Error
from m5ws.records.determinism import environment
from m5ws.records.environment import Determinism
from m5ws.records.launch import Saving
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure, local_copies
from m5ws.store.local import LocalStore
from tests.support.campaigns import soak_page
from tests.support.faults.kills import Scale
from tests.support.ranks.forked_attempts import SCRIPT, ForkedAttempts
from tests.support.ranks.loops import train
from tests.support.ranks.warm import Warm
from tests.support.records import planted
from tests.support.stores.counting_store import CountingStore
from tests.support.stores.dying_store import Died, DyingStore
from tests.support.stores.passing_store import PassingStore

_RANKS = 2
_STEPS = 12
_SPAN_STEPS = 4
_HEADER = (
    "| ranks | seed | kills | both nodes kept | node 1 replaced | both replaced | uploads completed | runs | seconds |",
    "|---|---|---|---|---|---|---|---|---|",
)


class _Node:
    """A node with a folder for copies, on which attempts of one rank run."""

    def __init__(self, in_process: Any, folder: Path) -> None:
        self.folder, self._in_process = folder, in_process
        folder.mkdir(mode=0o700)

    @property
    def repo(self) -> Repository:
        return self._in_process.runner.repo  # type: ignore[no-any-return]

    @property
    def run(self) -> str:
        return str(self._in_process.runner.run)

    def train(self, steps: int, repo: Repository | None = None, **more: Any) -> tuple[Any, BaseException | None]:
        """Run the next attempt, from the newest checkpoint."""
        newest = checkpoints.valid(self.repo, self.run)[-1:]
        resume = checkpoints.digest(self.repo, self.run, newest[0]) if newest else None
        orders = {"local": str(self.folder), "saving": Saving(local=str(self.folder), asynchronous=False)} | more
        attempt, error = self._in_process(train(steps, 1), resume=resume, repo=repo, **orders)
        return attempt, error

    def copies(self) -> list[str]:
        return sorted(place.name for place in (self.folder / self.run).glob("*"))

    def objects(self) -> list[Path]:
        """Return the files of all objects of the newest copy."""
        return sorted((self.folder / self.run / self.copies()[-1] / "objects").rglob("*/*"))

    def deliver(self, repo: Repository) -> None:
        """Deliver the ledger that the newest attempt left on this node."""
        runner = self._in_process.runner
        Delivery(repo, self.run, runner.attempts, runner.directory / "spool").deliver(final=True)

    def publish_left(self) -> list[str]:
        """Publish the copies, as the next agent does. Return the names of the valid checkpoints."""
        self.deliver(self.repo)
        local_copies.publish_left(self.repo, self.run, str(self.folder))
        return checkpoints.valid(self.repo, self.run)


def _without_references(repo: Repository) -> Repository:
    """Return a repository whose store takes all but references to checkpoints."""

    def refuse(operation: str, key: str) -> None:
        if operation == "create" and "/checkpoints/" in key:
            raise M5Error("no reference is accepted")

    return Repository(PassingStore(repo.store, refuse), repo.format)


@pytest.fixture
def node(in_process: Any, tmp_path: Path) -> _Node:
    return _Node(in_process, tmp_path / "node")


def _needs(repo: Repository, run: str) -> dict[str, int]:
    return closure.of_checkpoint(repo, checkpoints.digest(repo, run, checkpoints.valid(repo, run)[-1]))


def test_a_restart_on_the_same_node_reads_no_state_from_the_store(node: _Node, repo: Repository) -> None:
    node.train(3)
    counting = CountingStore(repo.store)
    attempt, error = node.train(4, Repository.open(counting))
    assert error is None and sorted(attempt.contents) == [4]
    read = {key.rpartition("/")[2] for key in counting.gets} & _needs(repo, node.run).keys()
    assert read == set()


def test_damaged_copies_are_noticed_and_read_from_the_store(node: _Node, repo: Repository) -> None:
    node.train(3)
    draw = random.Random(3)
    for path in node.objects():
        data = bytearray(path.read_bytes())
        place = draw.randrange(len(data))
        path.chmod(0o600)
        path.write_bytes(
            data[:place] if draw.random() < 0.5 else data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        )
    attempt, error = node.train(4)
    assert error is None and sorted(attempt.contents) == [4]
    [notice] = [text for text in attempt.notices("limit") if "damaged" in text]
    assert checkpoints.valid(repo, node.run)[-2] in notice


def test_a_node_keeps_the_newest_copies_alone(node: _Node) -> None:
    for last in (1, 2, 5, 9):
        node.train(last)
        assert [checkpoints.step_of(name) for name in node.copies()] == list(range(1, last + 1))[-local_copies.KEPT :]


@pytest.mark.parametrize("trouble", ["no folder", "no room"])
def test_a_save_without_room_for_copies_is_uploaded_with_one_notice(node: _Node, trouble: str) -> None:
    if trouble == "no room":
        for step in (1, 3):
            objects = node.folder / node.run / checkpoints.name(step, 1) / "objects"
            objects.parent.mkdir(parents=True)
            # The first object cannot be written, as on a disk that is full by then.
            objects.touch()
    else:
        node.folder.rmdir()
    attempt, error = node.train(3)
    assert error is None and sorted(attempt.contents) == [1, 2, 3]
    [notice] = [text for text in attempt.notices("limit") if "no copy" in text]
    assert "after step 1" in notice
    # The next save tries again.
    assert node.copies() == ([checkpoints.name(2, 1)] if trouble == "no room" else [])


def test_an_upload_killed_after_every_write_is_completed_from_the_copy(
    node: _Node, in_process: Any, tmp_path: Path
) -> None:
    whole, _ = node.train(2)
    for lives in range(1000):
        repo = Repository.create(LocalStore(tmp_path / f"store-{lives}"), node.repo.format)
        runner = in_process.runner
        runner.repo, runner.run, runner.attempts = repo, f"{lives + 2:012x}", 0
        try:
            node.train(2, Repository(DyingStore(repo.store, lives), repo.format))
        except Died:
            left = node.copies()
            assert node.publish_left() == left
            name = left[-1]
            assert checkpoints.find(repo, node.run, name)[1].content == whole.contents[checkpoints.step_of(name)]
        else:
            assert lives >= 10
            return
    pytest.fail("the save never ended")


def test_only_the_parts_of_all_nodes_are_published(node: _Node, repo: Repository, tmp_path: Path) -> None:
    node.train(1)
    [name] = node.copies()
    draw = random.Random(5)
    for case in range(6):
        target = Repository.create(LocalStore(tmp_path / f"store-{case}"), repo.format)
        planted.begin(target, node.run, 1)
        node.deliver(target)
        folders = [str(tmp_path / f"{case}-{number}") for number in range(2)]
        for folder in folders:
            shutil.copytree(node.folder, folder)
        # Each object is on one node, at least one is on node 1; records and the reference are where rank 0 was.
        shutil.rmtree(Path(folders[1], node.run, name, "runs"))
        digest, record = checkpoints.find(repo, node.run, name)
        parts = [path for path in node.objects() if path.name not in (digest, record.content)]
        moved = draw.sample(parts, draw.randrange(1, len(parts) + 1))
        for path in node.objects():
            where = path.relative_to(node.folder)
            Path(folders[path not in moved], where).unlink()
        local_copies.publish_left(target, node.run, folders[0])
        assert checkpoints.names(target, node.run) == []
        if case % 2:
            planted.begin(target, node.run, 2)
        local_copies.upload(target, node.run, folders[1])
        local_copies.publish_left(target, node.run, folders[0])
        # A newer attempt fences the copies.
        assert checkpoints.names(target, node.run) == ([] if case % 2 else [name])


def test_copies_of_an_attempt_that_another_ledger_has_are_not_published(
    node: _Node, in_process: Any, repo: Repository, tmp_path: Path
) -> None:
    node.train(1)
    runner, restored = in_process.runner, tmp_path / "restored"
    shutil.copytree(repo.store.url, restored)
    node.train(2, _without_references(repo))
    # The store of a backup, or a second store of the run: its attempt 2 is another attempt of this name.
    runner.repo, runner.attempts, runner.tmp = Repository.open(LocalStore(restored)), 1, tmp_path / "elsewhere"
    node.train(3, _without_references(node.repo), local="")
    assert [checkpoints.step_of(name) for name in node.copies()] == [1, 2]
    assert node.publish_left() == [checkpoints.name(1, 1)]
    # An attempt here does not fail because of the old copy.
    runner.attempts, runner.tmp = 1, tmp_path / "here"
    shutil.rmtree(Path(restored, "runs", node.run, "ledger", "0002"))
    attempt, error = node.train(3)
    assert error is None and sorted(attempt.contents) == [2, 3]
    [notice] = [text for text in attempt.notices("limit") if "no copy" in text]
    assert "after step 2" in notice


@pytest.mark.parametrize("damage", ["empty reference", "missing reference", "foreign object", "foreign reference"])
def test_a_damaged_copy_keeps_no_other_copy_from_use(node: _Node, repo: Repository, damage: str) -> None:
    node.train(2, _without_references(repo))
    first, second = node.copies()
    [reference] = (node.folder / node.run / second).glob("runs/*/checkpoints/*")
    reference.unlink()
    if damage == "empty reference":
        reference.touch()
    elif damage == "foreign object":
        Path(node.objects()[0].parents[1], "ab").mkdir(exist_ok=True)
        Path(node.objects()[0].parents[1], "ab", "left").touch()
    elif damage == "foreign reference":
        shutil.copy(node.folder / node.run / first / "runs" / node.run / "checkpoints" / first, reference)
    local_copies.upload(repo, node.run, str(node.folder))
    assert node.publish_left() == [first]


def test_copies_in_a_folder_that_others_may_write_to_are_not_published(node: _Node, repo: Repository) -> None:
    node.train(1, _without_references(repo))
    node.folder.chmod(0o770)
    assert node.publish_left() == []
    node.folder.chmod(0o700)
    assert node.publish_left() == node.copies()


# --- kills at random moments ---------------------------------------------------------------------


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    for name, value in {**environment(Determinism()), "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    with Warm(SCRIPT) as parent:
        yield parent


class _Campaign:
    """Kills of both ranks, each on a node of its own; then one of three sets of nodes makes the next attempt."""

    def __init__(self, runner: Any, warm: Warm, tiny: str, seed: int, nodes: list[Path]) -> None:
        self.draw, self._nodes, self._repo, self._runner = random.Random(seed), nodes, runner.repo, runner
        self.counts, self.completed, self.runs = [0, 0, 0], 0, 0
        self._attempts = ForkedAttempts(runner, warm, tiny, ranks=_RANKS, steps=_STEPS, checkpoint_every=1, nodes=nodes)

    def one_run(self, kills: int) -> None:
        attempts = self._attempts
        attempts.next()
        self.runs += 1
        while sum(self.counts) < kills and not attempts.finished():
            moment_s = self.draw.uniform(0, _SPAN_STEPS * attempts.step_s)
            ended, left = attempts.attempt([(moment_s, rank, int(signal.SIGKILL)) for rank in range(_RANKS)])
            attempts.learn(ended, left)
            self._restart(self.draw.choices((0, 1, 2), (3, 1, 1))[0])
            attempts.judge(left)
        if not attempts.finished():
            ended, left = attempts.attempt(())
            assert ended.statuses == [0] * _RANKS, left.log()
            attempts.judge(left)
        attempts.check_store()
        for folder in self._nodes:
            local_copies.remove(str(folder), self._runner.run)

    def _restart(self, replaced: int) -> None:
        """Replace `replaced` nodes, the last first, and let the nodes complete the uploads, as agents do."""
        self.counts[replaced] += 1
        for folder in self._nodes[_RANKS - replaced :]:
            shutil.rmtree(folder)
        run, before = self._runner.run, self._attempts.published()
        Delivery(self._repo, run, self._runner.attempts, self._runner.directory / "spool").deliver(final=True)
        for folder in self._nodes[1:]:
            local_copies.upload(self._repo, run, str(folder))
        local_copies.publish_left(self._repo, run, str(self._nodes[0]))
        self.completed += self._attempts.published() != before
        if not replaced:
            # All parts are there. The reference was written when the copies on all nodes were complete.
            complete = sorted(path.name for path in self._nodes[0].glob(f"{run}/*/runs/{run}/checkpoints/*"))
            names = [name for name in complete if checkpoints.attempt_of(name) == self._runner.attempts]
            assert not names or names[-1] in checkpoints.valid(self._repo, run)


_SCALES = [
    pytest.param(Scale(4), marks=pytest.mark.long),
    pytest.param(Scale(200, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
]


@pytest.mark.parametrize("scale", _SCALES)
def test_kills_at_any_moment_of_a_save_leave_checkpoints_of_one_step(
    runner: Any, warm: Warm, tiny: str, scale: Scale, tmp_path: Path
) -> None:
    began_s, seed = time.monotonic(), scale.seed()
    campaign = _Campaign(runner, warm, tiny, seed, [tmp_path / f"node-{rank}" for rank in range(_RANKS)])
    while sum(campaign.counts) < scale.kills:
        campaign.one_run(scale.kills)
        numbers = (_RANKS, seed, sum(campaign.counts), *campaign.counts, campaign.completed, campaign.runs)
        print(row := f"| {' | '.join(map(str, numbers))} | {time.monotonic() - began_s:,.0f} |")
        if scale.soak:
            soak_page.put("local-copies", _HEADER, row)
