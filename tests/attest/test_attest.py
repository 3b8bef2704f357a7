"""Statements: the choice of verdicts, and their joint outcome."""

import msgspec
import pytest

from m5ws.attest import attest, verify
from m5ws.errors import CorruptObject
from m5ws.records.reasons import Fact, Unreadable
from m5ws.records.run import Parent, Run, Segment
from m5ws.records.verdict import Outcome, Recheck, Verdict
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.reproduce.verdict.joint import joint_outcome
from m5ws.wording.sentences import describe
from tests.support.records import planted
from tests.support.records.forged_index import forge_creation
from tests.support.records.told_run import HARMS, REPLAY, RUN, batches, made, write

_PARTS = [Segment(first=0, last=4), Segment(first=4, last=8, checkpoint="0000000004-0001", digest="4" * 64)]


@pytest.fixture
def repo() -> Repository:
    return made()


def _verdict(outcome: Outcome, segment: Segment | None = None) -> Verdict:
    return Verdict(run=RUN, replay=REPLAY, outcome=outcome, segment=segment, reasons=(Unreadable(problem="as it is"),))


@pytest.mark.parametrize(
    ("found", "outcome", "reason"),
    [
        ([_verdict("reproduced")], "reproduced", "the whole run"),
        ([_verdict("sampled", part) for part in _PARTS], "reproduced", "all 2 segments"),
        ([_verdict("sampled", _PARTS[1])], "sampled", "steps 5-8 of 8"),
        ([_verdict("sampled", Segment(first=0, last=8))], "sampled", "steps 1-8 of 8"),
        ([_verdict("sampled", _PARTS[0]), _verdict("not comparable", _PARTS[1])], "sampled", "steps 1-4"),
        ([_verdict("reproduced"), _verdict("diverged", _PARTS[1])], "diverged", "steps 5-8: see the verdict"),
        (
            [_verdict("nondeterministic"), _verdict("sampled", _PARTS[0])],
            "nondeterministic",
            "the whole run: see the verdict",
        ),
        ([_verdict("not comparable")], "not comparable", "the whole run: see the verdict"),
    ],
)
def test_a_joint_verdict_has_the_worst_outcome_and_covers_only_verified_segments(
    found: list[Verdict], outcome: str, reason: str
) -> None:
    joint = joint_outcome(found, _PARTS)
    assert joint[0] == outcome and reason in describe(joint[1])


def test_segments_without_the_beginning_of_the_run_do_not_reproduce_the_run() -> None:
    assert joint_outcome([_verdict("sampled", _PARTS[1])], _PARTS[1:])[0] == "sampled"
    assert joint_outcome([_verdict("sampled", _PARTS[1])], [])[0] == "sampled"


def _replay(repo: Repository, name: str, outcome: Outcome, created_s: float, seed: int | None = None) -> None:
    run = runs.load(repo, REPLAY)
    spec = msgspec.structs.replace(run.spec, seed=seed)
    runs.publish(repo, msgspec.structs.replace(run, id=name, spec=spec, created_s=created_s))
    runs.publish_verdict(repo, Verdict(run=RUN, replay=name, outcome=outcome, created_s=created_s))


def test_the_newest_verdict_counts_and_other_verdicts_are_listed(repo: Repository) -> None:
    _replay(repo, "newer", "diverged", 5.0)
    _replay(repo, "another-seed", "diverged", 6.0, seed=7)
    predicate = attest.build(repo, RUN).predicate
    assert (predicate.outcome, [line.replay.name for line in predicate.verdicts]) == ("diverged", ["runs/newer/run"])
    assert {entry.replay: entry.why for entry in predicate.other_verdicts} == {
        "another-seed": "its inputs were changed",
        REPLAY: "a newer verdict exists",
    }
    alone = attest.build(repo, REPLAY).predicate
    assert (alone.outcome, alone.run) == ("reproduced", RUN)
    assert {entry.outcome for entry in alone.other_verdicts} == {"diverged"}


def test_a_forged_run_index_hides_and_adds_no_verdict(repo: Repository) -> None:
    _replay(repo, "newer", "diverged", 5.0)
    before = attest.build(repo, RUN)
    forge_creation(repo, "newer", reproduces=None, created_s=0.5)
    forge_creation(repo, REPLAY, created_s=9.0)
    assert attest.build(repo, RUN) == before and before.predicate.outcome == "diverged"


def test_an_attestation_names_the_ledger_of_the_second_replay_too(repo: Repository) -> None:
    runs.publish(repo, msgspec.structs.replace(runs.load(repo, REPLAY), id="newer", created_s=5.0))
    again = Recheck(replay=REPLAY, repeats=False)
    verdict = Verdict(run=RUN, replay="newer", outcome="nondeterministic", recheck=again)
    repo.store.delete(f"runs/{REPLAY}/verdict")
    runs.publish_verdict(repo, verdict)
    statement = attest.build(repo, RUN)
    assert statement.predicate.outcome == "nondeterministic"
    assert {line.run for line in statement.predicate.ledgers} == {RUN, REPLAY}
    assert verify.check(repo, statement, read_data=True).findings == ()


def test_an_attestation_of_a_fork_names_its_start_checkpoint(repo: Repository) -> None:
    name = checkpoints.name(3, 1)
    digest = checkpoints.digest(repo, RUN, name)
    parent = Parent(run=RUN, checkpoint=name, step=3, digest=digest)
    run = runs.load(repo, RUN)
    fork = Run(id="fork", snapshot=run.snapshot, spec=run.spec, parent=parent)
    runs.publish(repo, fork)
    planted.begin(repo, "fork")
    runs.publish(repo, msgspec.structs.replace(fork, id="again", purpose="reproduce", reproduces="fork"))
    runs.publish_verdict(
        repo, Verdict(run="fork", replay="again", outcome="not comparable", reasons=(Fact(kind="environment"),))
    )
    statement = attest.build(repo, "fork")
    assert [(line.name, line.record.name) for line in statement.predicate.checkpoints] == [
        (f"{RUN}@{name}", key(digest))
    ]
    # The parent may lose its reference: the fork's run record has the digest itself.
    repo.store.delete(checkpoints.key(RUN, name))
    assert verify.check(repo, statement, read_data=True).findings == ()
    repo.store.delete(key(digest))
    assert key(digest) in {finding.what for finding in verify.check(repo, statement, read_data=True).findings}


def test_a_run_without_its_ledger_is_not_attested(repo: Repository) -> None:
    for stat in [*repo.store.list(f"runs/{RUN}/ledger/")]:
        repo.store.delete(stat.key)
    with pytest.raises(CorruptObject, match=f"run {RUN} has no ledger"):
        attest.build(repo, RUN)


def test_a_damaged_run_is_not_attested(repo: Repository) -> None:
    here = batches(repo, RUN, "0")
    HARMS["edited"](here, 2)
    write(repo, RUN, "0", here, forged=True)
    with pytest.raises(CorruptObject, match="rank 0"):
        attest.build(repo, RUN)
