"""Output files of attempts that were killed with their supervisors: stored once, from dead attempts alone."""

import os
import socket
from pathlib import Path

import pytest

from m5ws.agent import recovery, run_lock
from m5ws.agent.delivery import DELIVERED
from m5ws.attempts import leader
from m5ws.attempts import planning as run_plans
from m5ws.errors import NotFound, UsageError
from m5ws.outputs import kept_work, killed, restoring, saved, unsaved
from m5ws.records import codec
from m5ws.records.ledger import NODE, AnyEvent, AttemptEnded, AttemptStarted, NodeStarted, Notice, OutputsStored
from m5ws.records.removal import Removal
from m5ws.records.run import LaunchSpec
from m5ws.repository import removals
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import ChainWriter
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.references import outputs as stored_outputs
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.runs import state
from m5ws.store.local import LocalStore
from m5ws.work import directories, inputs
from tests.support.records import planted
from tests.support.records.bisect_lab import Lab
from tests.support.stores.dying_store import Died, DyingStore
from tests.support.stores.passing_store import PassingStore
from tests.support.workspace.checkouts import write

_RUN = "a" * 12
_INPUTS = {"train.py": "print(1)\n", "out/given.txt": "of the snapshot"}
_WRITTEN = {"out/checkpoint-1/state.txt": "1", "out/checkpoint-2/state.txt": "2", "beside.txt": "not declared"}


def _opener(_: Path) -> Repository:
    raise NotFound("no kept checkpoint")


class _Home:
    """The `.m5ws` of a workspace, and work directories beside it."""

    def __init__(self, repo: Repository, folder: Path) -> None:
        self.repo, self.home, self.root, self.folder = repo, folder / "home", folder / "state", folder

    def start(self, *, is_launched: bool = True, run: str = _RUN, **fields: object) -> Path:
        """Start the first attempt of a run as the supervisor does, and return its directory."""
        code = planted.tree(self.repo, self.folder / "code", _INPUTS)
        spec = LaunchSpec(command=("train.py",), outputs=("out",))
        planted.run(self.repo, run, planted.publish(self.repo, planted.snapshot(code)), spec=spec, **fields)
        directory = self.home / "runs" / run / "0001"
        directory.mkdir(parents=True)
        run_lock.mark_directory(directory)
        work = directories.make(self.root, directory, run, self.folder / "checkout", lambda *_: False).path
        write(work, _INPUTS)
        started = AttemptStarted(attempt=1, host=socket.gethostname())
        SpoolWriter(directory / "spool" / "node.spool", genesis(run, 1, NODE)).append(started)
        planted.append(self.repo, run, 1, NODE, started)
        if is_launched:
            given = inputs.AttemptInputs(begun_ns=work.stat().st_ctime_ns, stamps=inputs.stamps(work))
            inputs.save(directory, work, given)
            write(work, _WRITTEN)
        return directory

    def deliver(self, repo: Repository | None = None) -> None:
        recovery.deliver(repo or self.repo, self.home, _opener)


@pytest.fixture
def home(repo: Repository, tmp_path: Path) -> _Home:
    return _Home(repo, tmp_path)


def _events(repo: Repository) -> list[AnyEvent]:
    return ledger.events(repo, _RUN, 1, NODE)


def _restored(repo: Repository, folder: Path) -> dict[str, str]:
    """Return the text of the files that a resume gets, by name; none if it gets none."""
    stored = saved.newest(repo, _RUN)
    if stored is None:
        return {}
    folder.mkdir()
    restoring.restore(repo, stored, folder)
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text(errors="replace") for path in files}


def _assert_ended_once(repo: Repository) -> None:
    kinds = [type(event) for event in _events(repo)]
    assert (kinds.count(OutputsStored), kinds.count(AttemptEnded)) == (1, 1) and kinds[-1] is AttemptEnded
    assert stored_outputs.names(repo, _RUN) == ["0001-0-final"] and fsck.check(repo, read_data=True).damage == ()


def test_output_files_of_a_killed_attempt_are_stored_as_at_a_usual_end(home: _Home, tmp_path: Path) -> None:
    directory = home.start()
    work = directories.find(directory)
    assert work is not None
    (work.path / "out" / "latest").symlink_to(work.path / "out" / "checkpoint-2")
    (work.path / "train.py").write_text("changed")
    home.deliver()
    restored = _restored(home.repo, tmp_path / "resumed")
    assert restored == {"out/checkpoint-1/state.txt": "1", "out/checkpoint-2/state.txt": "2"}
    assert os.readlink(tmp_path / "resumed" / "out" / "latest") == "checkpoint-2"
    notices = {event.kind: event.message for event in _events(home.repo) if isinstance(event, Notice)}
    assert "beside.txt" in notices["outputs-not-kept"] and "train.py" in notices["input-modified"]
    assert (directory / DELIVERED).exists() and not unsaved.waiting(directory)
    _assert_ended_once(home.repo)
    keys = sorted(stat.key for stat in home.repo.store.list(""))
    home.deliver()
    assert sorted(stat.key for stat in home.repo.store.list("")) == keys


def test_output_files_of_a_killed_follower_are_stored_as_files_of_its_node(home: _Home, tmp_path: Path) -> None:
    directory = home.start()
    started = NodeStarted(node=1, host=socket.gethostname(), observed=home.repo.objects.put(b"{}"))
    (directory / "spool" / "node.spool").unlink()
    SpoolWriter(directory / "spool" / "node.spool", genesis(_RUN, 1, f"{NODE}/1")).append(started)
    ChainWriter(home.repo, _RUN, 1, 1, is_new=True).append({NODE: [codec.encode(started)]})
    home.deliver()
    assert stored_outputs.names(home.repo, _RUN) == ["0001-1-final"] and (directory / DELIVERED).exists()
    assert [event.name for event in _events(home.repo) if isinstance(event, OutputsStored)] == ["0001-1-final"]
    # Only the leader ends an attempt.
    assert state.load(home.repo, _RUN).standing == "running"
    restored = _restored(home.repo, tmp_path / "resumed")
    assert restored == {"out/checkpoint-1/state.txt": "1", "out/checkpoint-2/state.txt": "2"}
    assert fsck.check(home.repo, read_data=True).damage == ()


def _count_writes(folder: Path) -> int:
    home = _Home(Repository.create(LocalStore(folder / "store")), folder)
    home.start()
    dying = DyingStore(LocalStore(folder / "store"), 1000)
    home.deliver(Repository.open(dying))
    return 1000 - dying.lives


def test_the_next_recovery_completes_a_recovery_killed_at_any_write(tmp_path: Path) -> None:
    writes = _count_writes(tmp_path / "whole")
    assert writes >= 5
    for lives in range(writes):
        folder = tmp_path / str(lives)
        home = _Home(Repository.create(LocalStore(folder / "store")), folder)
        directory = home.start()
        with pytest.raises(Died):
            home.deliver(Repository.open(DyingStore(LocalStore(folder / "store"), lives)))
        stored = stored_outputs.names(home.repo, _RUN)
        write(directory / "work", {"out/checkpoint-2/state.txt": "changed by the user"})
        home.deliver(Repository.open(LocalStore(folder / "store")))
        restored = _restored(home.repo, folder / "resumed")
        # Files that change between two recoveries are not published twice.
        assert len(restored) == 2 and (not stored or restored["out/checkpoint-2/state.txt"] == "2")
        _assert_ended_once(home.repo)


def test_a_concurrent_second_recovery_records_no_events(home: _Home, tmp_path: Path) -> None:
    home.start()
    beside: list[int] = []

    def before(operation: str, key: str) -> None:
        if operation == "create":
            known = len(_events(home.repo))
            home.deliver()
            beside.append(len(_events(home.repo)) - known)

    home.deliver(Repository.open(PassingStore(LocalStore(Path(home.repo.store.url)), before)))
    assert beside and not any(beside)
    assert len(_restored(home.repo, tmp_path / "resumed")) == 2
    _assert_ended_once(home.repo)


@pytest.mark.parametrize("wait_s", [0.0, 0.01])
def test_files_of_a_live_attempt_are_never_stored(home: _Home, tmp_path: Path, wait_s: float) -> None:
    directory = home.start()
    with run_lock.lock_run(directory.parent, wait_s):
        home.deliver()
        with pytest.raises(run_lock.RunAlive):
            recovery.deliver_run(home.repo, _RUN, home.home, home.root, _opener)
        recovery.deliver_run(home.repo, _RUN, tmp_path / "another", home.root, _opener)
        assert stored_outputs.names(home.repo, _RUN) == [] and len(_events(home.repo)) == 1
        assert directories.find(directory) is not None


def test_a_resume_in_another_workspace_of_the_machine_stores_the_output_files(home: _Home, tmp_path: Path) -> None:
    home.start()
    there = tmp_path / "another"
    with pytest.raises(run_lock.RunAlive):
        recovery.refuse_elsewhere(home.repo, _RUN, there)
    recovery.deliver_run(home.repo, _RUN, there, home.root, _opener)
    recovery.refuse_elsewhere(home.repo, _RUN, there)
    assert len(_restored(home.repo, tmp_path / "resumed")) == 2
    _assert_ended_once(home.repo)


def test_recovery_on_another_host_leaves_a_shared_work_directory_unchanged(
    home: _Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.start()
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    recovery.deliver_run(home.repo, _RUN, tmp_path / "another", home.root, _opener)
    assert stored_outputs.names(home.repo, _RUN) == [] and len(_events(home.repo)) == 1


def test_an_attempt_that_was_killed_before_its_launch_stores_nothing(home: _Home) -> None:
    directory = home.start(is_launched=False)
    # A part of the files of an earlier attempt, which were being restored.
    write(directory / "work", {"out/checkpoint-1/state.txt": "1"})
    home.deliver()
    assert stored_outputs.names(home.repo, _RUN) == []
    assert isinstance(_events(home.repo)[-1], AttemptEnded)


@pytest.mark.parametrize("record", [b"", b"\x81"])
def test_no_output_files_are_stored_if_the_record_of_inputs_is_damaged(home: _Home, record: bytes) -> None:
    (home.start() / "inputs").write_bytes(record)
    home.deliver()
    assert stored_outputs.names(home.repo, _RUN) == [] and isinstance(_events(home.repo)[-1], AttemptEnded)


def test_nothing_is_stored_for_a_replay_or_after_a_newer_attempt(home: _Home) -> None:
    home.start(run="b" * 12, purpose="reproduce", reproduces="c" * 12)
    home.deliver()
    assert stored_outputs.names(home.repo, "b" * 12) == []
    home.start()
    planted.begin(home.repo, _RUN, 2)
    home.deliver()
    assert stored_outputs.names(home.repo, _RUN) == [] and isinstance(_events(home.repo)[-1], AttemptEnded)


@pytest.mark.parametrize(("is_done", "standing"), [(False, ("failed", "failed")), (True, ("unsaved", "finished"))])
def test_files_that_cannot_be_stored_wait_on_this_machine(
    home: _Home, tmp_path: Path, is_done: bool, standing: tuple[str, str]
) -> None:
    directory = home.start()
    if is_done:
        killed.mark_done(directory)

    def before(operation: str, key: str) -> None:
        if operation == "create" and key.startswith("objects/"):
            raise OSError("the disk is full")

    home.deliver(Repository.open(PassingStore(LocalStore(Path(home.repo.store.url)), before)))
    kinds = [event.kind for event in _events(home.repo) if isinstance(event, Notice)]
    assert "outputs-not-stored" in kinds and unsaved.waiting(directory) and not (directory / DELIVERED).exists()
    standing_before = state.load(home.repo, _RUN).standing
    home.deliver()
    assert (standing_before, state.load(home.repo, _RUN).standing) == standing
    assert len(_restored(home.repo, tmp_path / "resumed")) == 2 and (directory / DELIVERED).exists()


def test_output_files_of_a_removed_run_stay_on_this_machine_until_they_are_dropped(home: _Home) -> None:
    directory = home.start()
    removals.publish(home.repo, Removal(run=_RUN))
    home.deliver()
    assert isinstance(_events(home.repo)[-1], AttemptEnded) and stored_outputs.names(home.repo, _RUN) == []
    (work,) = kept_work.find(home.home, _opener)
    assert work.files is not None and (Path(work.files) / "out").is_dir() and not (directory / DELIVERED).exists()

    def refuse(operation: str, key: str) -> None:
        pytest.fail(f"{operation} {key}: kept work is not delivered again")

    home.deliver(Repository(PassingStore(home.repo.store, refuse), home.repo.format))
    kept_work.drop(work)
    home.deliver()
    assert kept_work.find(home.home, _opener) == () and not Path(work.files).exists()
    assert (directory / DELIVERED).exists() and fsck.check(home.repo).damage == ()


@pytest.mark.parametrize(("stage", "standing"), [("storing", "finished"), ("running", "failed")])
def test_a_run_has_finished_if_m5ws_is_killed_after_the_ranks_ended_well(
    home: _Home, tmp_path: Path, stage: str, standing: str
) -> None:
    lab = Lab(home.repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    launch = LaunchSpec(command=("a.py",), outputs=("out",))
    new = run_plans.new_run(runs.load(home.repo, lab.good).snapshot, launch)
    plan = run_plans.plan(home.repo, new, home.home, tmp_path, {})

    def progress(reported: str, done: int, total: int) -> None:
        if reported.startswith(stage):
            raise Died(stage)

    with pytest.raises(Died):
        leader.execute(lab.ports, plan, None, progress)
    write(plan.directory / "work", {"out/weights.txt": "1"})
    home.deliver()
    assert state.load(home.repo, new.id).standing == standing
    assert len(stored_outputs.names(home.repo, new.id)) == 1
    if standing == "finished":
        with pytest.raises(UsageError, match="finished"):
            run_plans.resumed(home.repo, new.id)


def test_a_run_with_a_newer_attempt_has_not_finished(home: _Home) -> None:
    killed.mark_done(home.start())
    planted.begin(home.repo, _RUN, 2)
    home.deliver()
    assert state.attempt_of(home.repo, _RUN, 1).standing == "failed"


def test_a_work_directory_that_is_gone_is_no_error(home: _Home) -> None:
    directory = home.start()
    directories.remove(directory)
    home.deliver()
    assert stored_outputs.names(home.repo, _RUN) == []
    assert not [event for event in _events(home.repo) if isinstance(event, Notice)]
