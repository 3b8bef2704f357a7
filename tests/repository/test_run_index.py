"""The run index and the summaries of attempts: derived, cheap to read, and never trusted over the ledger."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.agent.delivery import Delivery
from m5ws.records import codec
from m5ws.records.ledger import (
    NODE,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    Event,
    Imported,
    Notice,
    RankEnded,
    RankStarted,
    State,
    Step,
)
from m5ws.records.run import LaunchSpec, Parent, Run
from m5ws.records.summary import AttemptSummary
from m5ws.records.verdict import Verdict
from m5ws.repository import bindings, reindex
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.ledger.spool import RankHeads, SpoolWriter, genesis
from m5ws.repository.references import ids, index_names, run_index, runs, snapshots
from m5ws.repository.references.run_index import AttemptEnd, RunCreation, RunFacts
from m5ws.repository.repository import Repository
from m5ws.runs import listing, run_table, state
from m5ws.store.local import LocalStore
from tests.support.records import planted
from tests.support.records.forged_index import forge, forge_creation, forge_end
from tests.support.stores.counting_store import CountingStore
from tests.support.stores.dying_store import Died, DyingStore
from tests.support.stores.passing_store import PassingStore

_FINISHED = AttemptEnded(outcome="finished", exit_code=0)
_IDS = st.text("abcXYZ019_-", min_size=1, max_size=20)
_MAYBE = st.none() | _IDS


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _run(repo: Repository, run: str, snapshot: str | None = None, **fields: object) -> Run:
    """Publish a run of the store's one snapshot, which is published first."""
    known = snapshot or next(iter(snapshots.ids(repo)), None)
    if known is None:
        known = planted.publish(repo, planted.snapshot(planted.packed(repo, {b"train.py": b"print(1)"})))
    return planted.run(repo, run, known, **fields)


def _train(repo: Repository, run: str, steps: int, *ends: Event, attempt: int = 1) -> None:
    """Publish an attempt with a batch of two ranks for each step, and its `ends`."""
    planted.begin(repo, run, attempt)
    writer = planted.AttemptWriter(repo, run, attempt)
    for rank in range(2):
        started = RankStarted(rank=rank, world=2, pid=1, facts={"threads": "1"})
        writer.append(str(rank), started, Imported(rank=rank, modules=("m",)))
        for step in range(1, steps + 1):
            state = State(step=step, tensors={"w": "1"})
            writer.append(str(rank), Step(step=step, total=90, quantities={"loss": "0x1p+0"}), state)
        writer.append(str(rank), Notice(kind="limit", message=f"of rank {rank}"), RankEnded(rank=rank))
    if ends:
        planted.append(repo, run, attempt, NODE, *ends)


def _requests(repo: Repository) -> tuple[Repository, Counter[str]]:
    """Return the same store, and the requests that are made of it by their kind."""
    made: Counter[str] = Counter()
    far = Repository.open(PassingStore(repo.store, lambda operation, _: made.update([operation])))
    made.clear()
    return far, made


def _forget(repo: Repository) -> None:
    """Delete the index and all summaries, as if each writer had been killed before it wrote them."""
    for stat in [*repo.store.list(index_names.PREFIX), *repo.store.list("runs/")]:
        if stat.key.startswith(index_names.PREFIX) or "/summaries/" in stat.key:
            repo.store.delete(stat.key)


# --- names ----------------------------------------------------------------------------------------------------------


_RUN = Run(id="run", snapshot="0" * 64, spec=LaunchSpec(command=("x.py",)), created_s=1.0)


def _names(run: Run, kind: str, value: object) -> list[str]:
    return [key.rpartition("/")[2] for key in run_index.keys(run, kind, value)]


@given(_IDS, st.floats(min_value=0, max_value=1e10), _MAYBE, st.none() | st.text(max_size=900), st.booleans())
def test_index_names_are_parsed_back_into_the_written_facts(
    run: str, created_s: float, reproduces: str | None, name: str | None, is_fork: bool
) -> None:
    fork = Parent(run="p", checkpoint="0000000001-0001", step=1, digest="0" * 64) if is_fork else None
    fact = RunCreation(created_s=created_s, snapshot="s", reproduces=reproduces, fork=fork, name=name)
    record = msgspec.structs.replace(_RUN, id=run, created_s=created_s)
    keys = run_index.keys(record, "created", fact)
    assert keys and all(len(part) <= 255 for key in keys for part in key.split("/"))
    names = _names(record, "created", fact)
    assert run_index.read(run, reversed(names)).created == fact
    assert run_index.read(f"{run}x", names) == RunFacts()
    if len(names) > 1:
        assert run_index.read(run, names[1:]) == RunFacts()


def test_newer_runs_come_first_in_the_index(repo: Repository) -> None:
    for number, created_s in enumerate((5.0, 1.5, 1.499, 1e9)):
        _run(repo, f"{number:012x}", created_s=created_s)
    assert [int(run, 16) for run, _ in run_index.newest(repo)] == [3, 0, 1, 2]


def test_parameters_that_are_too_large_for_the_index_are_read_from_the_snapshot(repo: Repository) -> None:
    draw = random.Random(1)
    values = {f"key{number}": str(draw.random()) for number in range(2000)}
    assert run_index.keys(_RUN, "parameters", values) == ()
    kept = dict(list(values.items())[:100])
    assert run_index.read("run", _names(_RUN, "parameters", kept)).parameters == kept


@pytest.mark.parametrize("total", [None, 90])
@pytest.mark.parametrize("outcome", ["finished", "failed", "interrupted", "unsaved"])
def test_attempt_ends_are_read_back_and_a_final_end_replaces_an_earlier_end(outcome: str, total: int | None) -> None:
    final = AttemptEnd(attempt=2, is_final=True, outcome="finished", last_step=9, total_steps=total)
    end = AttemptEnd(attempt=2, is_final=outcome == "finished", outcome=outcome, last_step=9, total_steps=total)
    names = {*_names(_RUN, "ended", end), *_names(_RUN, "ended", final)}
    assert run_index.read("run", names).ended == final


@pytest.mark.parametrize("value", [-1, 2**70, "1", None, {"attempt": -5}, b"x" * 99, [[]]])
@pytest.mark.parametrize("kind", ["begun", "ended", "created", "parameters", "other"])
def test_an_index_name_with_a_false_fact_is_ignored(value: object, kind: str) -> None:
    try:
        names = _names(_RUN, kind, value)
    except OverflowError:
        return
    assert run_index.read("run", names) == RunFacts()


def test_an_index_name_that_expands_beyond_the_limit_is_ignored() -> None:
    assert run_index.read("run", _names(_RUN, "parameters", {"a": "0" * 2**20})) == RunFacts()


@pytest.mark.parametrize(
    "text", ["ended", "", "ended.1.finished.2.90", f"ended.{'0' * 16}.01-01.AAAA", "created.x.01-01."]
)
def test_a_foreign_index_name_is_ignored_and_reported(repo: Repository, text: str) -> None:
    _run(repo, "a" * 12)
    _train(repo, "a" * 12, 2, _FINISHED)
    rows = run_table.newest(repo).rows
    if text:
        repo.store.create(f"{run_index.folder(runs.load(repo, 'a' * 12))}{text}", b"")
    assert run_table.newest(repo).rows == rows
    assert len(fsck.check(repo).damage) == bool(text)


@pytest.mark.parametrize("time_s", [math.nan, math.inf, -math.inf, -1.0, 1e20])
def test_a_run_with_an_invalid_time_has_no_keys_and_is_listed(repo: Repository, time_s: float) -> None:
    run = _run(repo, "a" * 12, created_s=time_s)
    assert run_index.folder(run) is None and fsck.check(repo).clean
    assert [row.id for row in run_table.newest(repo).rows] == [run.id]


def test_a_forged_number_of_attempts_costs_no_reads(repo: Repository) -> None:
    _run(repo, "a" * 12)
    _train(repo, "a" * 12, 2, _FINISHED)
    forge_end(repo, "a" * 12, 9999999999)
    (row,) = run_table.newest(repo).rows
    assert row.loss == 1.0


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_list_of_any_number_of_finished_runs_costs_two_listings(repo: Repository) -> None:
    costs = []
    for number in range(12):
        _run(repo, f"{number:012x}", created_s=float(number), name=f"run {number}")
        _train(repo, f"{number:012x}", 2, _FINISHED)
        reindex.fill(repo)
        far, made = _requests(repo)
        assert len(listing.list_runs(far)) == number + 1
        costs.append(dict(made))
    assert costs[0] == costs[-1] == {"list": 1, "names": 1}


def test_show_of_a_finished_run_reads_no_steps(repo: Repository) -> None:
    costs = []
    for run, steps in (("a" * 12, 2), ("b" * 12, 40)):
        _run(repo, run)
        _train(repo, run, steps, AttemptEnded(outcome="failed", exit_code=1))
        _train(repo, run, steps, _FINISHED, attempt=2)
    reindex.fill(repo)
    for run in ("a" * 12, "b" * 12):
        counting = CountingStore(repo.store)
        view = listing.view_run(Repository.open(counting), run)
        assert [attempt.standing for attempt in view.state.attempts] == ["failed", "finished"]
        assert [notice.message for notice in view.state.notices] == 2 * ["of rank 0", "of rank 1"]
        assert not [key for key in counting.gets if "/ledger/" in key and not key.endswith("/0/00000000")]
        costs.append(len(counting.gets))
    assert costs[0] == costs[1]


def test_replays_verdicts_and_forks_come_from_the_records_despite_a_false_index(repo: Repository) -> None:
    original = _run(repo, "a" * 12, created_s=1.0)
    for number in range(8):
        _run(repo, f"{number:012x}", original.snapshot, created_s=2.0, name=f"plain{number}")
    _run(repo, "b" * 12, original.snapshot, created_s=3.0, purpose="reproduce", reproduces=original.id)
    runs.publish_verdict(repo, Verdict(run=original.id, replay="b" * 12, outcome="diverged"))
    fork = Parent(run=original.id, checkpoint="0000000001-0001", step=1, digest="0" * 64)
    for linked in ("c" * 12, f"{1:012x}"):  # The second is no fork: its record decides.
        repo.store.create(f"{runs.LINKS}{original.id}/{linked}", b"")
    repo.store.create(f"runs/{'c' * 12}/run", codec.encode(msgspec.structs.replace(original, id="c" * 12, parent=fork)))
    for hidden in ("b" * 12, "c" * 12):
        forge_creation(repo, hidden, reproduces=None, fork=None)
    forge_creation(repo, f"{1:012x}", reproduces=original.id)
    view = listing.view_run(repo, original.id)
    assert [(row.id, row.outcome) for row in view.replays] == [("b" * 12, "diverged")]
    assert [row.id for row in view.forks] == ["c" * 12]
    assert runs.replays(repo, original.id) == ["b" * 12]
    for run in (original.id, "b" * 12):
        assert [verdict.replay for verdict in runs.verdicts(repo, run)] == ["b" * 12]
    assert ids.resolve(repo, "plain1") == ("run", f"{1:012x}")


# --- it agrees with the ledger --------------------------------------------------------------------------------------


def _rich(repo: Repository) -> None:
    """Publish runs that stand in every way."""
    for number, ends in enumerate(
        (
            (),
            (_FINISHED,),
            (AttemptEnded(outcome="failed", exit_code=1),),
            (AttemptEnded(outcome="unsaved", exit_code=4), _FINISHED),
            (AttemptEnded(outcome="interrupted", exit_code=130), Notice(kind="limit", message="late")),
        )
    ):
        _run(repo, f"{number:012x}", created_s=float(number), name=None if number else "näme")
        _train(repo, f"{number:012x}", number + 1, *ends)
    _run(repo, "c" * 12, created_s=9.5)
    _train(repo, "c" * 12, 3, AttemptEnded(outcome="failed", exit_code=1))
    _train(repo, "c" * 12, 4, attempt=2)
    for name, outcome in (("d" * 12, "not comparable"), ("e" * 12, "diverged")):
        _run(repo, name, created_s=10.0, purpose="reproduce", reproduces="c" * 12)
        runs.publish_verdict(repo, Verdict(run="c" * 12, replay=name, outcome=outcome))  # type: ignore[arg-type]


def test_rows_and_views_are_equal_without_an_index_and_with_a_rebuilt_index(repo: Repository) -> None:
    _rich(repo)
    reindex.fill(repo)
    before = listing.list_runs(repo), [listing.view_run(repo, run) for run in runs.ids(repo)]
    _forget(repo)
    assert (listing.list_runs(repo), [listing.view_run(repo, run) for run in runs.ids(repo)]) == before
    assert reindex.fill(repo) == len(runs.ids(repo)) + 1  # and the snapshot
    assert (listing.list_runs(repo), [listing.view_run(repo, run) for run in runs.ids(repo)]) == before
    assert fsck.check(repo).clean


def test_an_attempt_that_began_after_a_failed_attempt_is_shown(repo: Repository) -> None:
    _run(repo, "a" * 12)
    _train(repo, "a" * 12, 3, AttemptEnded(outcome="failed", exit_code=1))
    reindex.fill(repo)
    assert listing.list_runs(repo)[0].standing == "failed"
    _train(repo, "a" * 12, 5, attempt=2)
    forge(repo, "a" * 12, "begun", 2)
    row = listing.list_runs(repo)[0]
    assert (row.standing, row.attempts, row.last_step) == ("running", 2, 5)


def test_events_after_a_summarised_end_are_shown(repo: Repository) -> None:
    _run(repo, "a" * 12)
    _train(repo, "a" * 12, 3, AttemptEnded(outcome="unsaved", exit_code=4))
    reindex.fill(repo)
    planted.append(repo, "a" * 12, 1, NODE, _FINISHED)
    assert state.load(repo, "a" * 12).standing == "finished"
    assert fsck.check(repo).clean


def test_fsck_names_false_index_keys_and_false_summaries(repo: Repository) -> None:
    _rich(repo)
    reindex.fill(repo)
    run = f"{1:012x}"
    end = AttemptEnd(attempt=1, is_final=True, outcome="finished", last_step=99, total_steps=90)
    false = [
        *forge(repo, run, "ended", end),
        *forge(repo, run, "created", RunCreation(created_s=1.0, snapshot="0" * 64)),
        *forge(repo, run, "begun", 7),
        *forge(repo, run, "parameters", {"lr": "1"}),
        *forge(repo, "d" * 12, "verdict", "reproduced"),
        f"{run_index.folder(runs.load(repo, run))}ended.{'0' * 16}.01-01.AAAA",
    ]
    index_names.write(repo.store, false)
    where = summaries.key(run, 1, len(repo.store.names(f"runs/{run}/ledger/0001/0/")))
    summary = bindings.record(repo.store, where, AttemptSummary)
    events = summary.events | {"0": summary.events["1"]}
    repo.store.delete(where)
    repo.store.create(where, codec.encode(msgspec.structs.replace(summary, events=events)))
    assert {one.key for one in fsck.check(repo).damage} == {*false, where}


# --- crashes --------------------------------------------------------------------------------------------------------


def _attempt(repo: Repository, spools: Path, run: Run) -> None:
    """Publish a run, and deliver one attempt of it from its spools, as a supervisor does."""
    if run.id not in runs.ids(repo):
        runs.publish(repo, run)
    started = AttemptStarted(attempt=1, host="h")
    if not ledger.attempts(repo, run.id):
        planted.append(repo, run.id, 1, NODE, started)
    done = (RankStarted(rank=0, world=1, pid=1), Step(step=1, quantities={}, total=1), RankEnded(rank=0))
    heads = RankHeads(run.id, 1)
    for stored in map(codec.encode, done):
        heads.add("0", stored)
    ended = msgspec.structs.replace(_FINISHED, heads=heads.by_rank)
    chains: dict[str, tuple[AnyEvent, ...]] = {NODE: (started, ended), "0": done}
    spools.mkdir(parents=True, exist_ok=True)
    for rank, events in chains.items():
        if not (path := spools / f"{rank}.spool").exists():
            writer = SpoolWriter(path, genesis(run.id, 1, rank))
            for event in events:
                writer.append(event)
            writer.close()
    Delivery(repo, run.id, 1, spools).finish()


def _lives(tmp_path: Path) -> Iterator[tuple[Repository, Repository, Path]]:
    for lives in range(20):
        store = LocalStore(tmp_path / f"store-{lives}", durable=False)
        whole = Repository.create(store)
        _run(whole, "b" * 12)
        yield whole, Repository.open(DyingStore(store, lives)), tmp_path / f"spools-{lives}" / "spool"


def test_the_next_delivery_completes_the_index_after_a_kill_at_any_write(tmp_path: Path) -> None:
    deaths = 0
    for whole, dying, spools in _lives(tmp_path):
        other = runs.load(whole, "b" * 12)
        run = Run(id="a" * 12, snapshot=other.snapshot, spec=LaunchSpec(command=("train.py",)), created_s=1.0)
        try:
            _attempt(dying, spools, run)
        except Died:
            deaths += 1
        else:
            break
        assert fsck.check(whole).clean
        rows = listing.list_runs(whole)
        kept = [*whole.store.list(index_names.PREFIX)]
        _forget(whole)
        assert listing.list_runs(whole) == rows
        index_names.write(whole.store, [stat.key for stat in kept])
        _attempt(whole, spools, run)
        reindex.fill(whole)
        index = run_index.load(whole)[run.id]
        assert index.created is not None and index.ended is not None and index.ended.is_final
        assert fsck.check(whole).clean
    assert deaths > 5
