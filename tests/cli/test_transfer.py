"""`m5ws push` and `m5ws pull`, through the command line."""

from pathlib import Path
from typing import Any

from m5ws import workspace


def test_a_pushed_run_can_be_pulled_into_another_workspace(m5: Any, made: Any, place: Path, tmp_path: Path) -> None:
    team = tmp_path / "team"
    pushed = m5("push", made.replay[:12], "--to", team, "--json").document
    assert (pushed["runs"], pushed["snapshots"]) == (2, 1)
    assert m5("push", made.replay, "--to", team, "--json").document["new_objects"] == 0

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "m5ws.toml").write_text("[mlflow]\nenabled = false\n")
    assert m5("-C", elsewhere, "pull", "--all", "--from", team).status == 0
    assert m5("-C", elsewhere, "fsck").status == 0
    shown = [m5("-C", root, "show", made.replay, "--json").document for root in (place, elsewhere)]
    assert shown[0] == shown[1]


def test_a_dry_push_counts_the_copies_and_creates_no_store(m5: Any, made: Any, tmp_path: Path) -> None:
    done = m5("push", "--all", "--to", tmp_path / "team", "--dry-run")
    assert done.status == 0 and "would be copied" in done.out
    assert not (tmp_path / "team").exists()


def test_pull_refuses_a_missing_store(m5: Any, place: Path, tmp_path: Path) -> None:
    done = m5("pull", "--all", "--from", tmp_path / "nowhere")
    assert done.status == 3 and str(tmp_path / "nowhere") in done.err
    assert workspace.find(place, {}).home.exists() is False


def test_init_with_an_impossible_store_writes_nothing(m5: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert m5("-C", tmp_path, "init", "--store", tmp_path / "file" / "store", "w").status == 2
    assert not (tmp_path / "w").exists()


def test_a_damaged_object_of_the_other_store_is_named_with_that_store(m5: Any, made: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert m5("push", made.snapshot, "--to", other).status == 0
    damaged = max((other / "objects").glob("*/*"), key=lambda path: path.stat().st_size)
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:5])
    done = m5("push", made.run, "--to", other)
    assert done.status == 3 and f"(in the store {other})" in done.err
    assert f"hint: Run `m5ws fsck` in a workspace of the store {other}." in done.err
