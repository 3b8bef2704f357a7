"""Notes about runs: `m5ws note`, and `m5ws run --why`."""

import shutil
import socket
from pathlib import Path

import pytest

from m5ws.repository.fsck import fsck
from m5ws.repository.references import notes, runs
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import Workspace


def test_notes_are_shown_in_the_order_in_which_they_were_added(m5: M5, made: Made, home: Repository) -> None:
    assert m5("note", made.run, "first").status == 0
    told = m5("note", "--json", made.run, "second\nof two lines", "--outcome", "refuted").document
    assert (told["run"], told["outcome"], told["kind"]) == (made.run, "refuted", "note")
    view = m5("show", "--json", made.run).document
    assert [note["text"] for note in view["notes"]] == ["first", "second\nof two lines"]
    assert "second" in m5("show", made.run).out and "[refuted]" in m5("show", made.run).out
    assert m5("show", "--json", made.replay).document["notes"] == []
    assert notes.annotated_runs(home) == {made.run} and fsck.check(home).clean


def test_the_author_of_a_note_is_the_git_user_and_empty_without_git(m5: M5, made: Made, place: Path) -> None:
    git(place, "config", "user.name", "Ada")
    git(place, "config", "user.email", "ada@example.org")
    assert m5("note", "--json", made.run, "with git").document["author"] == "Ada <ada@example.org>"
    shutil.rmtree(place / ".git")
    assert m5("note", "--json", made.run, "without").document["author"] is None


def test_the_newest_note_with_an_outcome_decides_the_outcome(m5: M5, made: Made, home: Repository) -> None:
    assert notes.outcome(notes.load(home, made.run)) is None
    for outcome in ("open", "supported"):
        m5("note", made.run, "judged", "--outcome", outcome)
    m5("note", made.run, "one more word")
    assert notes.outcome(notes.load(home, made.run)) == "supported"
    assert notes.why(notes.load(home, made.run)) is None


@pytest.mark.parametrize("text", ["", " \n\t", "x" * 10_001])
def test_a_text_that_is_empty_or_too_long_is_refused_and_nothing_is_stored(
    m5: M5, made: Made, home: Repository, text: str
) -> None:
    assert m5("note", made.run, text).status == 2
    assert m5("run", "--why", text, "--", "train.py").status == 2
    assert notes.annotated_runs(home) == frozenset()


def test_a_credential_in_a_note_is_masked(m5: M5, made: Made, home: Repository) -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    m5("note", made.run, f"with {token}")
    (note,) = notes.load(home, made.run)
    assert token not in note.text and note.text.startswith("with ")


def test_push_copies_the_notes_of_a_run_and_later_added_notes(
    m5: M5, made: Made, home: Repository, place: Path, tmp_path: Path
) -> None:
    target = Workspace(tmp_path / "elsewhere")
    m5("note", made.run, "first")
    m5("push", made.run, "--to", tmp_path / "team")
    m5("note", made.run, "second")
    assert m5("push", "--json", made.run, "--to", tmp_path / "team").document["references"] == 1
    (target.root).mkdir()
    (target.root / "m5ws.toml").write_text("[mlflow]\nenabled = false\n")
    assert m5("-C", target.root, "pull", made.run, "--from", tmp_path / "team").status == 0
    assert [note.text for note in notes.load(target.repo, made.run)] == ["first", "second"]


def test_a_note_about_a_run_that_does_not_exist_is_damage(m5: M5, made: Made, home: Repository) -> None:
    m5("note", made.run, "first")
    note = notes.load(home, made.run)[0]
    home.store.create(f"notes/{'0' * 12}/00000000000000-00000000", b"not a note")
    kinds = {damage.key: damage.kind for damage in fsck.check(home).damage}
    assert kinds.pop(f"notes/{'0' * 12}") == "dangling" and len(kinds) == 1
    assert runs.load(home, note.run).id == made.run


def test_an_unreachable_mlflow_causes_a_message_and_no_failure(m5: M5, made: Made, place: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        (place / "m5ws.toml").write_text(f"[mlflow]\ntracking_uri = '{url}'\n")
        noted = m5("note", made.run, "kept in the store")
    assert noted.status == 0 and "MLflow" in noted.err
    assert "kept in the store" in m5("show", made.run).out
