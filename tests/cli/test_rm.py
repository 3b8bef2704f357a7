"""`m5ws rm`."""

from pathlib import Path

from m5ws.repository import removals
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made


def test_runs_are_removed_together_and_hidden(m5: M5, made: Made, home: Repository, tmp_path: Path) -> None:
    refused = m5("rm", made.run)
    assert (refused.status, refused.out) == (2, "") and made.replay in refused.err
    done = m5("rm", made.run, made.replay, "--dry-run")
    assert done.status == 0 and made.replay in done.out and removals.removed_runs(home) == frozenset()
    document = m5("rm", made.run, made.replay, "--json").document
    assert [one["run"] for one in document["removed"]] == [made.run, made.replay]
    assert m5("ls", "--runs", "--json").document["runs"] == []
    assert "removed" in m5("show", made.run).out
    assert m5("push", made.run, "--to", tmp_path / "team").status == 6
    assert m5("push", "--all", "--to", tmp_path / "team", "--json").document["runs"] == 0
    young = m5("gc", "--dry-run", "--json").document["would"]
    old = m5("gc", "--dry-run", "--older-than", "0s", "--json").document["would"]
    assert young["objects"] == 0 and young["young_objects"] == old["objects"] > 0
    assert young["kept_objects"] == old["kept_objects"] and m5("fsck").status == 0
