"""Removal of runs: refused while others rest on them; gc deletes their checkpoints and outputs, and nothing else."""

import random
from pathlib import Path

import pytest

from m5ws.attempts import leader, removal
from m5ws.attempts import planning as run_plan
from m5ws.attempts.removal import RunNeeded
from m5ws.errors import UsageError
from m5ws.records.checkpoint import Content
from m5ws.records.gc import RetentionRules
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, OutputsStored, Step
from m5ws.records.outputs import OutputFiles
from m5ws.records.reasons import JointReason
from m5ws.records.removal import Removal
from m5ws.records.run import LaunchSpec, Parent
from m5ws.records.verdict import JointVerdict, Verdict
from m5ws.repository import removals
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, outputs, runs
from m5ws.repository.removals import Removed
from m5ws.repository.repository import Repository
from m5ws.reproduce import reproduce
from m5ws.runs import listing, run_table
from m5ws.store.local import LocalStore
from tests.support.records import contents, planted
from tests.support.records.bisect_lab import Lab
from tests.support.records.forged_index import forge_creation, forge_end

A, B, C = "a" * 12, "b" * 12, "c" * 12
_AT_ONCE_S = -60.0


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _train(repo: Repository, run: str, outcome: str | None = "interrupted", **fields: object) -> None:
    """Publish a run with two checkpoints and the output files of its end."""
    snapshot = planted.publish(repo, planted.snapshot(planted.packed(repo, {b"train.py": b"print(1)"})))
    record = planted.run(repo, run, snapshot, **fields)
    planted.begin(repo, run)
    draw = random.Random(run)
    saved = []
    for step in (1, 2):
        content = contents.content(repo.objects, world=1, blobs={"w": planted.whole(repo.objects, draw.randbytes(900))})
        digest = planted.checkpoint(repo, run, step, content)
        name, stored = checkpoints.name(step, 1), checkpoints.find(repo, run, checkpoints.name(step, 1))[1].content
        saved.append(CheckpointPublished(step=step, name=name, checkpoint=digest, content=stored))
    tree = planted.packed(repo, {b"out/result": draw.randbytes(300)})
    content_digest = repo.objects.put_record(Content(format="files/1", world=1, tree=tree))
    written = OutputFiles(run=run, snapshot=record.snapshot, attempt=1, node=0, moment="final", content=content_digest)
    digest, label = outputs.publish(repo, written), "0001-0-final"
    planted.append(repo, run, 1, "0", *(Step(step=step, quantities={"loss": "0x1p+0"}) for step in (1, 2)), *saved)
    planted.append(repo, run, 1, NODE, OutputsStored(name=label, record=digest, content=content_digest))
    if outcome is not None:
        ended = AttemptEnded(outcome=outcome, exit_code=0)  # type: ignore[arg-type]
        planted.append(repo, run, 1, NODE, ended)


def _lab(repo: Repository, folder: Path) -> tuple[Lab, str]:
    """Return a laboratory with a finished run of it."""
    lab = Lab(repo, folder)
    lab.train("a", lambda bad, step: 0.0)
    return lab, lab.good


def _mark(repo: Repository, run: str) -> None:
    removals.publish(repo, Removal(run=run, author="Ada", created_s=1.0))


def _remove(repo: Repository, *names: str) -> None:
    removal.remove(repo, removal.plan(repo, names), "Ada")


def _collect(repo: Repository, home: Path) -> int:
    """Plan and execute a gc, and return the bytes that it deleted."""
    planned = gc.plan(repo, RetentionRules(), _AT_ONCE_S)
    if planned.id is None:
        return 0
    with execute.lock_gc(home) as holder:
        return execute.execute(repo, planned.id, holder, grace_s=0.0).size_bytes


def test_gc_deletes_objects_that_only_a_removed_run_needs_and_keeps_its_records(
    repo: Repository, tmp_path: Path
) -> None:
    _train(repo, A)
    _train(repo, B)
    assert _collect(repo, tmp_path / "home") == 0
    _remove(repo, A)
    assert [row.id for row in run_table.newest(repo).rows] == [B]
    assert _collect(repo, tmp_path / "home") > 2 * 900 + 300
    assert checkpoints.names(repo, A) == [] and outputs.names(repo, A) == []
    assert len(checkpoints.names(repo, B)) == 2 and outputs.names(repo, B) == ["0001-0-final"]
    view = listing.view_run(repo, A)
    assert view.removal is not None and view.removal.author == "Ada" and view.state.last_step == 2
    assert fsck.check(repo).clean and fsck.check(repo).unreachable == 0
    assert _collect(repo, tmp_path / "home") == 0


def test_gc_keeps_a_young_checkpoint_of_a_removed_run(repo: Repository) -> None:
    _train(repo, A)
    _remove(repo, A)
    assert gc.plan(repo, RetentionRules(), 3600.0).id is None


def test_a_removed_run_cannot_be_resumed_forked_or_removed_again(repo: Repository) -> None:
    _train(repo, A)
    digest = checkpoints.digest(repo, A, checkpoints.name(1, 1))
    _remove(repo, A)
    parent = Parent(run=A, checkpoint=checkpoints.name(1, 1), step=1, digest=digest)
    with pytest.raises(Removed, match="removed by Ada"):
        run_plan.resumed(repo, A)
    with pytest.raises(Removed, match="removed by Ada"):
        planted.run(repo, B, runs.load(repo, A).snapshot, parent=parent)
    with pytest.raises(Removed, match="removed by Ada"):
        removal.plan(repo, [A])


def test_dependents_of_a_run_are_named_and_block_its_removal(repo: Repository, tmp_path: Path) -> None:
    _train(repo, A)
    _train(repo, B, purpose="reproduce", reproduces=A)
    with pytest.raises(RunNeeded, match=f"run {B} reproduces {A}"):
        removal.plan(repo, [A])
    assert [one.run for one in removal.plan(repo, [B])] == [B]
    runs.publish_verdict(repo, Verdict(run=A, replay=B, outcome="reproduced"))
    runs.publish_joint(
        repo, JointVerdict(run=A, outcome="sampled", reason=JointReason(kind="no verdict"), of=1, replays=(B,))
    )
    with pytest.raises(RunNeeded, match=f"joint verdict on run {A}") as error:
        removal.plan(repo, [B])
    assert f"the verdict on run {A} rests on its replay {B}" in str(error.value)
    label = checkpoints.name(2, 1)
    parent = Parent(run=A, checkpoint=label, step=2, digest=checkpoints.digest(repo, A, label))
    planted.run(repo, C, runs.load(repo, A).snapshot, parent=parent)
    with pytest.raises(RunNeeded, match=f"run {C} starts from a checkpoint of {A}"):
        removal.plan(repo, [A, B])
    checkpoints.keep(repo, B, label)
    with pytest.raises(RunNeeded, match=f"{B}@{label} is kept"):
        removal.plan(repo, [A, B, C])
    assert removals.removed_runs(repo) == frozenset()
    repo.store.delete(checkpoints.pin_key(B, label))
    _remove(repo, A, B, C)
    _collect(repo, tmp_path / "home")
    # C starts from a checkpoint of A, so its reference and its objects stay.
    assert checkpoints.names(repo, A) == [label] and fsck.check(repo).clean


def test_a_run_without_an_end_is_removed_only_if_its_machine_was_lost(repo: Repository) -> None:
    _train(repo, A, outcome=None)
    with pytest.raises(UsageError, match="alive"):
        removal.plan(repo, [A])
    planned = removal.plan(repo, [A], lost=True)
    assert [(row.checkpoints, row.newest.host if row.newest else "") for row in planned] == [(2, "h")]
    assert any("attempt 1 on h has no end" in line for line in removal.remove(repo, planned, "Ada")[1])


def test_a_forged_run_index_hides_no_dependents_and_ends_no_run(repo: Repository) -> None:
    _train(repo, A)
    _train(repo, B, purpose="reproduce", reproduces=A)
    forge_creation(repo, B, reproduces=None)
    with pytest.raises(RunNeeded, match=f"run {B} reproduces {A}"):
        removal.plan(repo, [A])
    label = checkpoints.name(2, 1)
    parent = Parent(run=B, checkpoint=label, step=2, digest=checkpoints.digest(repo, B, label))
    _train(repo, C, outcome=None, parent=parent)
    forge_creation(repo, C, fork=None)
    with pytest.raises(RunNeeded, match=f"run {C} starts from a checkpoint of {B}"):
        removal.plan(repo, [B])
    for attempt in (1, 9):
        forge_end(repo, C, attempt)
        with pytest.raises(UsageError, match="alive"):
            removal.plan(repo, [C])


def test_a_replay_with_a_damaged_record_still_blocks_removal_of_its_original(repo: Repository) -> None:
    _train(repo, A)
    _train(repo, B, purpose="reproduce", reproduces=A)
    repo.store.delete(f"runs/{B}/run")
    repo.store.create(f"runs/{B}/run", b"damaged")
    with pytest.raises(RunNeeded, match=f"run {B} reproduces {A}"):
        removal.plan(repo, [A])


@pytest.mark.parametrize("moment", ["start", "step"])
def test_an_attempt_of_a_removed_run_stops_and_its_ledger_has_the_end(
    repo: Repository, tmp_path: Path, moment: str
) -> None:
    lab, good = _lab(repo, tmp_path)
    new = run_plan.new_run(runs.load(repo, good).snapshot, LaunchSpec(command=("a.py",), outputs=("out",)))
    begun = lab.ranks.begun

    def rule(bad: frozenset[str], step: int) -> float:
        if step == 2:
            _mark(repo, new.id)
        return 0.0

    lab.ranks.rule = rule
    plan = run_plan.plan(repo, new, tmp_path / "home", tmp_path, {})
    with pytest.raises(Removed, match=f"attempt 1 of run {new.id} was stopped: run {new.id} was removed by Ada"):
        leader.execute(lab.ports, plan, accept=lambda *_: _mark(repo, new.id) if moment == "start" else None)
    # A removed run's script does not begin.
    assert lab.ranks.begun - begun == (moment == "step")
    ended = ledger.ended(repo, new.id, 1)
    assert ended is not None and ended.reason is not None and ended.reason.kind == "removed"
    assert (ended.outcome, ended.exit_code) == ("interrupted", 6) and fsck.check(repo).clean


def test_a_replay_of_a_removed_run_stops_and_rm_names_the_replay(repo: Repository, tmp_path: Path) -> None:
    lab, good = _lab(repo, tmp_path)
    planned = removal.plan(repo, [good])
    request = reproduce.ReplayRequest(original=good)
    replay = reproduce.plan(lab.ports, request, tmp_path / "home", tmp_path)
    words: list[str] = []

    def rule(bad: frozenset[str], step: int) -> float:
        if step == 2:
            words.extend(removal.remove(repo, planned, "Ada")[1])
        return 0.0

    lab.ranks.rule = rule
    with pytest.raises(Removed, match=f"run {good} was removed by Ada"):
        reproduce.execute(lab.ports, request, replay, lambda drift: None)
    assert words == [f"run {replay.run.id} reproduces {good}, since the removal began"]
    with pytest.raises(Removed):
        reproduce.plan(lab.ports, request, tmp_path / "home", tmp_path)


def test_a_verdict_on_a_run_that_was_removed_meanwhile_is_no_result(repo: Repository) -> None:
    _train(repo, A)
    _train(repo, B, purpose="reproduce", reproduces=A)
    _mark(repo, A)
    with pytest.raises(Removed):
        runs.publish_verdict(repo, Verdict(run=A, replay=B, outcome="reproduced"))


def test_rm_counts_a_checkpoint_that_was_published_since_its_plan(repo: Repository) -> None:
    _train(repo, A)
    planned = removal.plan(repo, [A])
    content = contents.content(repo.objects, world=1, blobs={"w": planted.whole(repo.objects, b"new")})
    planted.checkpoint(repo, A, 3, content)
    assert [row.checkpoints for row in removal.remove(repo, planned, "Ada")[0]] == [3]
    with pytest.raises(Removed):
        planted.checkpoint(repo, A, 4, content)
    with pytest.raises(Removed):
        checkpoints.keep(repo, A, checkpoints.name(3, 1))
