"""Restores compared with uninterrupted training: an exact one, and one that loses its position in the data."""

from pathlib import Path

from tests.support.workspace.workspaces import make_workspace


def test_every_restore_is_equal_to_not_stopping_and_what_was_certified_is_named(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py")
    certificate = workspace.json("certify", "--nproc", "2", "--steps", "4", "--parallel", "2")
    assert (certificate["outcome"], certificate["steps"], certificate["restored"]) == ("certified", 4, [1, 2, 3])
    what = certificate["what"]
    assert (what["framework"], what["optimizer"], what["ranks"]) == ("PyTorch", "AdamW", "2")
    assert what["torch"].startswith("2.")
    # Each restore continued to the end, and did no step twice.
    assert [verdict["compared"]["steps"] for verdict in certificate["verdicts"]] == [6, 4, 2]


def test_a_position_in_the_data_that_is_not_saved_is_found_where_it_shows(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "forgetful.py", nproc=1)
    certificate = workspace.json("certify", "--nproc", "1", "--steps", "4", "--restores", "1", expect=1)
    assert certificate["outcome"] == "inexact" and len(certificate["restored"]) == 1
    first = certificate["verdicts"][0]["first"]
    assert (first["step"], first["quantity"]) == (certificate["restored"][0] + 1, "loss")
    output = workspace.m5ws("show", certificate["verdicts"][0]["replay"]).stdout
    assert "INEXACT RESTORE" in output and "NOT COMPARABLE" not in output
