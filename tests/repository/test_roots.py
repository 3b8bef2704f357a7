"""Checkpoints that the rules retire, and checkpoints that are always kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.errors import NotFound, UsageError
from m5ws.records.checkpoint import Content
from m5ws.records.gc import RetentionRules
from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.records.tree import Tree
from m5ws.records.verdict import Divergence, Recheck, Verdict
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import roots
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure
from tests.support.records import planted

RUN = "a" * 12
_LABELS = [checkpoints.name(step, 1) for step in range(10, 110, 10)]


@pytest.fixture
def trained(repo: Repository) -> Repository:
    """A store with a run that published ten checkpoints, at steps 10, 20 … 100."""
    tree = repo.objects.put_record(Tree(entries=()))
    planted.run(repo, RUN, planted.publish(repo, planted.snapshot(tree)))
    planted.begin(repo, RUN)
    for step in range(10, 110, 10):
        save(repo, step)
    return repo


def save(repo: Repository, step: int, kind: str = "dcp/1") -> None:
    planted.checkpoint(repo, RUN, step, Content(format=kind, world=step))  # type: ignore[arg-type]


def steps(repo: Repository, rules: RetentionRules) -> list[int]:
    """Return the steps of the retired checkpoints."""
    found = roots.read(repo, rules, lambda *_: True).retired
    return [checkpoints.step_of(str(one.checkpoint)) for one in found]


@given(count=st.integers(0, 20), last=st.none() | st.integers(1, 25), every=st.none() | st.integers(1, 50))
def test_the_newest_checkpoint_is_always_kept_and_all_checkpoints_without_rules(
    count: int, last: int | None, every: int | None
) -> None:
    labels = [checkpoints.name(10 * number, 1) for number in range(1, count + 1)]
    kept = roots.retained(labels, RetentionRules(last=last, every=every))
    assert set(labels[-1:]) <= kept <= set(labels)
    if last is None and every is None:
        assert kept == set(labels)
    assert set(labels[-(last or 1) :]) <= kept
    assert all(every is None or checkpoints.step_of(label) % every or label in kept for label in labels)


def test_rules_keep_the_last_and_every_nth_checkpoint(trained: Repository) -> None:
    assert steps(trained, RetentionRules(last=2, every=40)) == [10, 20, 30, 50, 60, 70]


def test_a_checkpoint_kept_by_name_stays_and_fsck_reports_its_loss(trained: Repository) -> None:
    checkpoints.keep(trained, RUN, _LABELS[0])
    checkpoints.keep(trained, RUN, _LABELS[0])
    assert steps(trained, RetentionRules(last=8)) == [20]
    assert fsck.check(trained).clean
    digest = checkpoints.digest(trained, RUN, _LABELS[0])
    trained.store.delete(key(digest))
    pin = f"pins/{RUN}/{_LABELS[0]}"
    assert ("dangling", pin) in {(one.kind, one.key) for one in fsck.check(trained).damage}


def test_a_missing_or_superseded_checkpoint_cannot_be_kept(trained: Repository) -> None:
    with pytest.raises(NotFound):
        checkpoints.keep(trained, RUN, checkpoints.name(7, 1))
    planted.begin(trained, RUN, 2)
    with pytest.raises(UsageError):
        checkpoints.keep(trained, RUN, _LABELS[0])


def test_the_start_checkpoint_of_a_live_attempt_stays_until_the_attempt_ends(trained: Repository) -> None:
    planted.begin(trained, RUN, 2, inherits=tuple(_LABELS), resume=_LABELS[3])
    assert 40 not in steps(trained, RetentionRules(last=1))
    planted.append(trained, RUN, 2, NODE, AttemptEnded(outcome="finished", exit_code=0))
    assert 40 in steps(trained, RetentionRules(last=1))


def test_files_that_a_script_wrote_are_never_retired(trained: Repository) -> None:
    save(trained, 101, kind="files/1")
    save(trained, 102, kind="files/1")
    assert steps(trained, RetentionRules(last=1)) == [10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_the_evidence_of_a_divergence_stays(trained: Repository) -> None:
    snapshot = runs.load(trained, RUN).snapshot
    planted.run(trained, "b" * 12, snapshot, reproduces=RUN)
    first = Divergence(step=20, rank=0, quantity="loss", original="1", replayed="2", tensor_step=30)
    runs.publish_verdict(trained, Verdict(run=RUN, replay="b" * 12, outcome="diverged", first=first))
    assert {20, 30}.isdisjoint(steps(trained, RetentionRules(last=1)))


def test_a_replay_is_copied_with_the_second_replay_of_its_verdict(trained: Repository) -> None:
    snapshot = runs.load(trained, RUN).snapshot
    for name in ("b" * 12, "c" * 12):
        planted.run(trained, name, snapshot, reproduces=RUN)
    again = Recheck(replay="c" * 12, last=20, repeats=True)
    runs.publish_verdict(trained, Verdict(run=RUN, replay="b" * 12, outcome="diverged", recheck=again))
    names = [name for kind, name in closure.roots(trained, [("run", "b" * 12)]) if kind == "run"]
    assert names == [RUN, "c" * 12, "b" * 12]
    for name in (RUN, "b" * 12, "c" * 12):
        assert [one.replays for one in runs.verdicts(trained, name)] == [("b" * 12, "c" * 12)]


def test_reading_the_roots_of_a_damaged_store_is_an_error(trained: Repository) -> None:
    trained.store.delete(key(checkpoints.digest(trained, RUN, _LABELS[0])))
    with pytest.raises(NotFound):
        roots.read(trained, RetentionRules(), lambda *_: True)
