"""Every event of a ledger edited, dropped, reordered, replayed or cut off: the findings of `fsck` and of `verify`."""

import msgspec
import pytest

from m5ws.attest import attest, claims, verify
from m5ws.errors import NotFound
from m5ws.records import attestation, codec
from m5ws.records.attestation import Statement
from m5ws.records.ledger import NODE, Notice
from m5ws.records.run import Run, Segment
from m5ws.records.verdict import Verdict
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.records.told_run import EVENTS, HARMS, REPLAY, RUN, SAVED, batches, forge_end, made, undone, write
from tests.support.stores.memory_store import MemoryStore

_EACH = [(rank, number) for rank, count in EVENTS.items() for number in range(count)]


@pytest.fixture
def repo() -> Repository:
    return made()


@pytest.fixture
def statement(repo: Repository) -> Statement:
    return attest.build(repo, RUN)


def _findings(repo: Repository, statement: Statement) -> list[str]:
    return [finding.what for finding in verify.check(repo, statement, read_data=True).findings]


def _damage(repo: Repository) -> list[str]:
    return [problem.key for problem in fsck.check(repo).damage]


def _swap(repo: Repository, where: str, data: bytes) -> None:
    assert isinstance(repo.store, MemoryStore)
    repo.store.delete(where)
    repo.store.create(where, data)


def test_the_tampered_run_has_the_number_of_events_that_the_tests_expect(repo: Repository) -> None:
    for run in (RUN, REPLAY):
        assert {origin: len(ledger.events(repo, run, 1, origin)) for origin in EVENTS} == EVENTS


def test_verify_and_fsck_find_nothing_in_an_untouched_store(repo: Repository, statement: Statement) -> None:
    checked = verify.check(repo, statement, read_data=True)
    assert (checked.findings, checked.notes) == ((), ())
    assert (checked.chains, checked.events) == (2, 2 * sum(EVENTS.values()))
    assert claims.contradictions(statement) == [] and fsck.check(repo).clean
    assert statement.predicate.outcome == "reproduced"


def _named(findings: list[str], run: str = RUN) -> bool:
    """Return True if a run's chain, or a batch of it, is among the findings."""
    where = f"runs/{run}/ledger/0001/0"
    return any(finding == where or finding.startswith(f"{where}/") for finding in findings)


@pytest.mark.parametrize("run", [RUN, REPLAY])
@pytest.mark.parametrize("harm", HARMS)
def test_fsck_and_verify_name_the_chain_of_any_altered_event(
    repo: Repository, statement: Statement, run: str, harm: str
) -> None:
    for rank, number in _EACH:
        with undone(repo):
            here = batches(repo, run, rank)
            HARMS[harm](here, number)
            write(repo, run, rank, here, forged=False)
            assert _named(_damage(repo), run), (rank, number)
            assert _named(_findings(repo, statement), run), (rank, number)
    assert fsck.check(repo).clean and _findings(repo, statement) == []


@pytest.mark.parametrize("harm", HARMS)
def test_a_recomputed_chain_of_a_rank_does_not_end_at_its_recorded_head(
    repo: Repository, statement: Statement, harm: str
) -> None:
    for rank, number in _EACH:
        if rank == NODE:
            continue
        with undone(repo):
            here = batches(repo, RUN, rank)
            HARMS[harm](here, number)
            write(repo, RUN, rank, here, forged=True)
            assert _named(_damage(repo)) and _named(_findings(repo, statement)), (rank, number)


@pytest.mark.parametrize("harm", HARMS)
def test_checkpoints_and_statements_reveal_a_fully_recomputed_ledger(
    repo: Repository, statement: Statement, harm: str
) -> None:
    """A checkpoint has the ledger's head before it, and a statement has the head of the chain."""
    for rank, number in _EACH:
        with undone(repo):
            here = batches(repo, RUN, rank)
            HARMS[harm](here, number)
            write(repo, RUN, rank, here, forged=True)
            if rank != NODE:
                forge_end(repo, RUN)
            assert _named(_findings(repo, statement)), (rank, number)
            before = rank != NODE and number < SAVED and harm != "replayed"
            assert not before or _named(_damage(repo)), (rank, number)


def test_only_a_statement_reveals_events_recomputed_after_the_last_checkpoint(
    repo: Repository, statement: Statement
) -> None:
    here = batches(repo, RUN, "0")
    HARMS["edited"](here, SAVED)
    write(repo, RUN, "0", here, forged=True)
    forge_end(repo, RUN)
    assert fsck.check(repo).clean  # See `docs/what-a-verdict-proves.md`.
    assert _named(_findings(repo, statement))


@pytest.mark.parametrize("rank", EVENTS)
def test_a_ledger_that_was_cut_off_is_found(repo: Repository, statement: Statement, rank: str) -> None:
    """Its last batches are deleted, and so are its last events, with consistent digests."""
    for count in range(1, EVENTS[rank] + 1):
        with undone(repo):
            here = batches(repo, RUN, rank)
            for _ in range(count):
                [events for events in here if events][-1].pop()
            write(repo, RUN, rank, here, forged=True)
            assert _named(_findings(repo, statement)), count
            # An attempt without its end looks like a killed attempt: only a statement shows the cut.
            assert _named(_damage(repo)) is (rank != NODE or count == EVENTS[rank]), count


def test_verify_finds_any_missing_attempt_and_fsck_a_missing_earlier_attempt(
    repo: Repository, statement: Statement
) -> None:
    assert isinstance(repo.store, MemoryStore)
    for where in [name for name in repo.store.objects if name.startswith(f"runs/{RUN}/ledger/0001/")]:
        repo.store.delete(where)
    assert f"runs/{RUN}/ledger/0001/0" in _findings(repo, statement)
    assert _damage(repo) == []
    planted.begin(repo, RUN, 2, _observed(statement))
    assert f"runs/{RUN}/ledger/0001" in _damage(repo)


def _observed(statement: Statement) -> str:
    """Return the digest of the observed environment."""
    return statement.predicate.environments[0].record.name.rpartition("/")[2]


def test_newer_events_are_noted_and_are_no_finding(repo: Repository, statement: Statement) -> None:
    planted.begin(repo, RUN, 2, _observed(statement))
    checked = verify.check(repo, statement, read_data=False)
    assert checked.findings == () and "newer attempts: 2" in checked.notes[0]
    later = attest.build(repo, RUN)
    assert claims.contradictions(later) == []
    noticed = Notice(kind="environment", message="another library")
    planted.append(repo, RUN, 2, NODE, noticed)
    assert verify.check(repo, later, read_data=False).notes == (f"runs/{RUN}/ledger/0002/0 has 1 newer events",)
    # An attempt that has ended records nothing more.
    planted.append(repo, RUN, 1, NODE, noticed)
    assert _findings(repo, statement) == [f"runs/{RUN}/ledger/0001/0"]


def test_verify_checks_every_named_file_and_every_needed_object(repo: Repository, statement: Statement) -> None:
    assert isinstance(repo.store, MemoryStore)
    named = {subject.name for subject in statement.named}
    assert {
        f"runs/{RUN}/run",
        f"runs/{REPLAY}/run",
        f"runs/{REPLAY}/verdict",
        key(statement.predicate.snapshot),
    } < named
    # The replay has its own checkpoint, with the same content.
    own = key(checkpoints.digest(repo, REPLAY, checkpoints.name(3, 1)))
    for where, (data, _) in list(repo.store.objects.items()):
        if where in named or (where.startswith("objects/") and where != own):
            with undone(repo):
                _swap(repo, where, data[:-1] + bytes([data[-1] ^ 1]))
                assert where in _findings(repo, statement)
                repo.store.delete(where)
                if where == f"runs/{RUN}/run":
                    with pytest.raises(NotFound):
                        _findings(repo, statement)
                else:
                    assert where in _findings(repo, statement)


def test_verify_finds_a_replaced_verdict_and_a_replaced_run_despite_valid_seals(
    repo: Repository, statement: Statement
) -> None:
    verdict, run = runs.verdict(repo, runs.load(repo, REPLAY)), runs.load(repo, REPLAY)
    assert isinstance(verdict, Verdict) and isinstance(run, Run)
    where = f"runs/{REPLAY}/verdict"
    with undone(repo):
        _swap(repo, where, codec.encode(msgspec.structs.replace(verdict, outcome="diverged")))
        details = [
            finding.detail
            for finding in verify.check(repo, statement, read_data=False).findings
            if finding.what == where
        ]
        assert "the verdict in the store differs from the statement" in details and len(details) == 3
    _swap(repo, f"runs/{REPLAY}/run", codec.encode(msgspec.structs.replace(run, reproduces="other")))
    assert "it reproduces other" in {
        finding.detail for finding in verify.check(repo, statement, read_data=False).findings
    }


def test_a_checkpoint_that_was_retired_or_exchanged_is_found(repo: Repository, statement: Statement) -> None:
    name = checkpoints.name(3, 1)
    where = checkpoints.key(RUN, name)
    exchanged = checkpoints.digest(repo, REPLAY, name)
    _swap(repo, where, f"{exchanged}\n".encode())
    assert _findings(repo, statement) == [f"{RUN}@{name}"]
    repo.store.delete(where)
    assert _findings(repo, statement) == [f"{RUN}@{name}"]


def test_verify_finds_a_statement_that_covers_fewer_steps_than_the_run(repo: Repository, statement: Statement) -> None:
    shorter = msgspec.structs.replace(statement.predicate, segments=(Segment(first=0, last=2),))
    assert _findings(repo, msgspec.structs.replace(statement, predicate=shorter)) == ["segments"]


def test_a_statement_that_contradicts_itself_is_found_without_a_store(statement: Statement) -> None:
    replace = msgspec.structs.replace
    whole = statement.predicate
    (line,) = whole.verdicts
    for predicate, what in (
        (replace(whole, outcome="diverged"), "outcome"),
        (replace(whole, verdicts=()), "verdicts"),
        (replace(whole, ledgers=()), f"run {RUN}"),
        (replace(whole, ledgers=(*whole.ledgers, whole.ledgers[0])), f"runs/{RUN}/ledger/0001/0"),
        (
            replace(whole, segments=(replace(whole.segments[0], checkpoint="0000000003-0001", digest="0" * 64),)),
            "steps 1-3",
        ),
        (replace(whole, segments=(whole.segments[0], Segment(first=4, last=5))), "steps 5-5"),
        (replace(whole, run=REPLAY), f"runs/{REPLAY}/verdict"),
        (replace(whole, snapshot="0" * 64), key("0" * 64)),
        (replace(whole, verdicts=(replace(line, found=line.found | {"outcome": "fine"}),)), f"runs/{REPLAY}/verdict"),
    ):
        assert what in {finding.what for finding in claims.contradictions(replace(statement, predicate=predicate))}
    assert claims.contradictions(replace(statement, subject=statement.subject[1:])) != []


def test_a_statement_is_deterministic_and_unchanged_by_its_encoding(repo: Repository, statement: Statement) -> None:
    body = attestation.payload(statement)
    assert attestation.statement(body, "it") == statement
    assert body == attestation.payload(attest.build(repo, RUN))
