"""Promise 7: after a kill, a full disk or a closed store, events are kept and delivered later, in order, once."""

import fcntl
import subprocess
from pathlib import Path

import pytest

from m5ws.agent import recovery, run_lock
from m5ws.agent.delivery import DELIVERED, Delivery
from m5ws.attempts import repeated_steps
from m5ws.outputs import unrecorded
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import NODE, AttemptEnded, AttemptStarted, RankStarted, Step
from m5ws.records.verdict import Verdict
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.objects import key
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.runs import history, state
from tests.support.records import planted

_RUN = "a" * 12


def _begun(repo: Repository, home: Path, attempt: int = 1, resume: str | None = None) -> Path:
    """Begin an attempt as the supervisor does, and return its directory."""
    directory = home / "runs" / _RUN / f"{attempt:04d}"
    if attempt == 1:
        planted.run(repo, _RUN)
    started = AttemptStarted(attempt=attempt, host="h", resume=resume)
    SpoolWriter(directory / "spool" / "node.spool", genesis(_RUN, attempt, NODE)).append(started)
    run_lock.mark_directory(directory)
    planted.append(repo, _RUN, attempt, NODE, started)
    return directory


def _steps(directory: Path, attempt: int, first: int, last: int, loss: str = "0x1p+0") -> None:
    spool = SpoolWriter(directory / "spool" / "0.spool", genesis(_RUN, attempt, "0"))
    spool.append(RankStarted(rank=0, world=1, pid=1))
    for number in range(first, last + 1):
        spool.append(Step(step=number, quantities={"loss": loss}))


def test_recovery_delivers_and_ends_an_attempt_with_a_killed_supervisor(repo: Repository, tmp_path: Path) -> None:
    directory = _begun(repo, tmp_path)
    _steps(directory, 1, 1, 5)
    recovery.deliver(repo, tmp_path)
    found = state.load(repo, _RUN)
    assert (found.standing, found.last_step) == ("failed", 5)
    assert (directory / DELIVERED).exists()
    before = len(list(repo.store.list("runs/")))
    recovery.deliver(repo, tmp_path)
    assert len(list(repo.store.list("runs/"))) == before


def test_recovery_records_a_published_checkpoint_without_an_event(repo: Repository, tmp_path: Path) -> None:
    directory = _begun(repo, tmp_path)
    _steps(directory, 1, 1, 5)
    content = Content(format="dcp/1", world=1)
    planted.checkpoint(repo, _RUN, 4, content)
    recovery.deliver(repo, tmp_path)
    assert history.load(repo, _RUN).contents == {4: repo.objects.put_record(content)}
    assert list(unrecorded.events(repo, _RUN, 1)) == []


def test_recovery_ends_an_attempt_despite_a_damaged_checkpoint(repo: Repository, tmp_path: Path) -> None:
    directory = _begun(repo, tmp_path)
    _steps(directory, 1, 1, 5)
    record = planted.checkpoint(repo, _RUN, 4, Content(format="dcp/1", world=1))
    repo.store.delete(key(record))
    recovery.deliver(repo, tmp_path)
    assert (history.load(repo, _RUN).contents, state.load(repo, _RUN).standing) == ({}, "failed")


@pytest.mark.parametrize("lock", ["lock", "ranks"])
def test_recovery_skips_a_run_with_a_live_supervisor_or_live_ranks(repo: Repository, tmp_path: Path, lock: str) -> None:
    directory = _begun(repo, tmp_path)
    _steps(directory, 1, 1, 5)
    with open(directory.parent / lock, "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        recovery.deliver(repo, tmp_path)
        assert state.load(repo, _RUN).standing == "running" and not (directory / DELIVERED).exists()
        with pytest.raises(run_lock.RunAlive), run_lock.lock_run(directory.parent, wait_s=0.0):
            pass


def test_a_resume_names_the_live_ranks_of_an_earlier_attempt(tmp_path: Path) -> None:
    lines: list[str] = []
    with open(tmp_path / "ranks", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[held.fileno()]) as process:
            with pytest.raises(run_lock.RunAlive) as raised, run_lock.lock_run(tmp_path, 1.1, lines.append):
                pass
            process.communicate()
    assert f" {process.pid} " in str(raised.value)
    assert str(process.pid) in raised.value.hint
    assert len(lines) == 1 and f" {process.pid} " in lines[0]


def test_a_failed_delivery_raises_no_error_and_is_retried_later(repo: Repository, tmp_path: Path) -> None:
    directory = _begun(repo, tmp_path)
    _steps(directory, 1, 1, 5)
    batch = Path(repo.store.url) / f"runs/{_RUN}/ledger/0001/0/00000001"
    batch.mkdir()  # A folder in the place of the next batch.
    recovery.deliver(repo, tmp_path)
    assert not (directory / DELIVERED).exists()
    batch.rmdir()
    recovery.deliver(repo, tmp_path)
    assert state.load(repo, _RUN).last_step == 5


def test_a_dropped_end_of_a_ledger_is_found(repo: Repository, tmp_path: Path) -> None:
    directory = _begun(repo, tmp_path)
    _steps(directory, 1, 1, 3)
    delivery = Delivery(repo, _RUN, 1, directory / "spool")
    delivery.deliver(final=True)
    spool = SpoolWriter(tmp_path / "more", "0" * 64)
    planted.append(repo, _RUN, 1, "0", Step(step=4, quantities={}))
    spool.append(Step(step=4, quantities={}))
    with open(directory / "spool" / "0.spool", "ab") as file:
        file.write((tmp_path / "more").read_bytes())
    ended = AttemptEnded(outcome="finished", exit_code=0, heads=delivery.heads())
    planted.append(repo, _RUN, 1, NODE, ended)
    assert not [one for one in fsck.check(repo).damage if one.kind == "broken-chain"]
    (Path(repo.store.url) / f"runs/{_RUN}/ledger/0001/0/00000001").unlink()
    assert [one.kind for one in fsck.check(repo).damage if one.kind == "broken-chain"] == ["broken-chain"]


def test_an_inexact_resume_is_detected_after_a_second_resume(repo: Repository, tmp_path: Path) -> None:
    """Attempt 1 reaches step 9. Attempt 2 goes back to 4 and dies at once. Attempt 3 repeats steps of attempt 1."""
    for attempt, last in ((1, 9), (2, 4)):
        directory = _begun(repo, tmp_path, attempt, "0000000004-0001" if attempt > 1 else None)
        _steps(directory, attempt, 1 if attempt == 1 else 5, last)
        Delivery(repo, _RUN, attempt, directory / "spool").finish()
    watch = repeated_steps.RepeatedSteps(repo, _RUN, 3)
    watch.compare("0", Step(step=6, quantities={"loss": "0x1p+0"}))
    assert watch.take() == []
    watch.compare("0", Step(step=7, quantities={"loss": "0x1p+1"}))
    assert watch.take() == [repeated_steps.Difference(7, (0,), ("loss",))]


def test_a_kept_verdict_is_published_by_a_later_recovery(repo: Repository, tmp_path: Path) -> None:
    verdict = Verdict(run="b" * 12, replay=_RUN, outcome="reproduced")
    planted.run(repo, _RUN, reproduces="b" * 12)
    recovery.keep_verdict(tmp_path, verdict)
    recovery.deliver(repo, tmp_path)
    assert runs.verdict(repo, runs.load(repo, _RUN)) == verdict
    recovery.deliver(repo, tmp_path)


def test_a_damaged_verdict_does_not_block_other_verdicts(repo: Repository, tmp_path: Path) -> None:
    for replay in (_RUN, "c" * 12):
        planted.run(repo, replay, reproduces="b" * 12)
        recovery.keep_verdict(tmp_path, Verdict(run="b" * 12, replay=replay, outcome="reproduced"))
    damaged = tmp_path / "runs" / min(_RUN, "c" * 12) / recovery.VERDICT
    damaged.write_bytes(damaged.read_bytes()[:-1])
    recovery.deliver(repo, tmp_path)
    published = {one for one in (_RUN, "c" * 12) if runs.verdict(repo, runs.load(repo, one)) is not None}
    assert published == {max(_RUN, "c" * 12)} and damaged.exists()
