"""`m5ws gc` and `m5ws checkpoint keep`: plan, grace period, and refusals."""

from pathlib import Path

import pytest

from m5ws.records.checkpoint import Content
from m5ws.records.gc import GcExecution
from m5ws.repository import bindings, gc_plans
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.records import planted


@pytest.fixture
def left(home: Repository, made: Made, place: Path) -> Repository:
    """The store of `made` with data of a killed writer, and rules that retire one checkpoint."""
    with open(place / "m5ws.toml", "a", encoding="utf-8") as settings:
        settings.write("[retention]\nlast = 1\n")
    home.objects.put(b"left by a killed writer")
    planted.checkpoint(home, made.run, 9, Content(format="dcp/1", world=1))
    return home


def test_gc_plans_waits_and_deletes(m5: M5, left: Repository, made: Made) -> None:
    old = checkpoints.name(3, 1)
    tried = m5("gc", "--dry-run", "--older-than", "0s")
    assert "1 checkpoints, 2 objects" in tried.out and "dry run" in tried.out
    assert left.store.names("gc/") == ()
    planned = m5("gc", "--older-than", "0s", "--json").document
    assert planned["state"] == "planned" and planned["would"]["objects"] == 2
    assert {one["run"] for one in planned["would"]["freed"]} == {made.run}
    waiting = m5("gc", "--json").document
    assert (waiting["state"], waiting["plan"]) == ("waiting", planned["plan"])
    early = m5("gc", "--execute", planned["plan"][:12])
    assert early.status == 2 and planned["plan"] in early.err and "--grace" in early.err
    assert old in checkpoints.names(left, made.run)
    done = m5("gc", "--grace", "0s", "--json").document
    assert done["deleted"]["checkpoints"] == 1 and done["deleted"]["objects"] == 2
    assert old not in checkpoints.names(left, made.run)
    report = fsck.check(left)
    assert report.clean and report.unreachable == 0
    assert "nothing to delete" in m5("gc", "--older-than", "0s").out
    assert m5("show", made.run).status == 0 and m5("ls").status == 0


def test_gc_plans_no_young_objects(m5: M5, left: Repository) -> None:
    assert m5("gc", "--json").document["state"] == "nothing"


def test_gc_spares_a_checkpoint_that_was_kept_after_the_plan(m5: M5, left: Repository, made: Made) -> None:
    m5("gc", "--older-than", "0s")
    kept = m5("checkpoint", "keep", f"{made.run}@3", "--json").document
    assert kept == {"run": made.run, "checkpoint": checkpoints.name(3, 1)}
    done = m5("gc", "--grace", "0s", "--json").document["deleted"]
    assert (done["checkpoints"], done["objects"], done["spared"]) == (0, 1, 1)
    assert checkpoints.valid(left, made.run) == [checkpoints.name(3, 1), checkpoints.name(9, 1)]
    assert fsck.check(left).clean


def test_keep_accepts_a_step_a_name_or_the_newest_checkpoint(m5: M5, left: Repository, made: Made) -> None:
    assert checkpoints.name(9, 1) in m5("checkpoint", "keep", made.run).out
    assert m5("checkpoint", "keep", f"{made.run}@{checkpoints.name(3, 1)}").status == 0
    assert checkpoints.kept(left, made.run) == [checkpoints.name(3, 1), checkpoints.name(9, 1)]
    assert m5("checkpoint", "keep", f"{made.run}@7").status == 3


def test_a_denied_delete_is_reported_before_writers_have_to_wait(
    m5: M5, left: Repository, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: object, key: str) -> None:
        raise PermissionError(13, "Permission denied", key)

    m5("gc", "--older-than", "0s")
    monkeypatch.setattr("m5ws.store.local.LocalStore.delete", refuse)
    denied = m5("gc", "--grace", "0s")
    assert denied.status == 2
    assert "permission" in denied.err
    assert not gc_plans.read_states(left.store).executing


def test_gc_of_another_workspace_is_taken_over_only_with_take_over(m5: M5, left: Repository) -> None:
    plan = m5("gc", "--older-than", "0s", "--json").document["plan"]
    bindings.create(left.store, gc_plans.state_key(plan, "executing"), GcExecution(holder="another", host="far"))
    refused = m5("gc", "--grace", "0s")
    assert refused.status == 2 and " far" in refused.err and "--take-over" in refused.err
    assert m5("gc", "--execute", plan, "--take-over").status == 0
    assert m5("gc", "--take-over").status == 2
    assert m5("gc", "--execute", plan).status == 3


def test_a_second_gc_in_a_workspace_is_refused_while_the_first_runs(m5: M5, left: Repository, place: Path) -> None:
    with execute.lock_gc(place / ".m5ws"):
        refused = m5("gc")
        assert refused.status == 2 and "another gc" in refused.err


def test_old_plans_are_deleted_and_their_done_marks_stay(m5: M5, left: Repository) -> None:
    first = m5("gc", "--older-than", "0s", "--json").document["plan"]
    m5("gc", "--grace", "0s")
    left.objects.put(b"more")
    second = m5("gc", "--older-than", "0s", "--json").document["plan"]
    m5("gc", "--grace", "0s")
    execute.clear(left, second)
    assert list(left.store.list(gc_plans.folder(first)))
    execute.clear(left, second, older_than_s=-1e9)
    assert not list(left.store.list(gc_plans.folder(first)))
    assert gc_plans.read_states(left.store).done == {first, second}
    assert fsck.check(left).clean


def test_a_canary_that_never_waits_is_refused(m5: M5) -> None:
    done = m5("canary", "--every", "0s")
    assert (done.status, "'0s' is less than 1s" in done.err) == (2, True)
