"""The tokenizer in a snapshot: its files, and the ids of the probe text."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from m5ws.errors import M5Error, MissingExtra, NotFound
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from m5ws.snapshot.sources.tokenizer import Tokenizers
from tests.support.workspace.captures import make_settings, take
from tests.support.workspace.checkouts import write


class Counting(Tokenizers):
    calls = 0

    def ids(self, tokenizer_json: bytes, text: str) -> tuple[int, ...]:
        self.calls += 1
        return super().ids(tokenizer_json, text)


def _tokenizer(vocabulary: Sequence[str]) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="?"))  # noqa: S106 — not that kind of token
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


def test_token_ids_are_pinned_and_computed_once(root: Path, repo: Repository) -> None:
    pytest.importorskip("tokenizers")
    write(root, {"tok/tokenizer.json": _tokenizer(["?", "b", "a"])})
    settings = make_settings(tokenizer={"path": "tok", "probe": "a b c"})
    probe = Counting()
    first = take(root, repo, settings, probe=probe)
    assert first.snapshot.tokenizer is not None
    assert (first.snapshot.tokenizer.probe_text, first.snapshot.tokenizer.probe_ids) == ("a b c", (2, 1, 0))
    assert take(root, repo, settings, probe=probe).id == first.id
    assert probe.calls == 1
    write(root, {"tok/tokenizer.json": _tokenizer(["?", "a", "b"])})
    changed = take(root, repo, settings, probe=probe).snapshot.tokenizer
    assert changed is not None
    assert changed.probe_ids == (1, 2, 0)


def test_a_model_cache_of_links_is_pinned_by_content(root: Path, repo: Repository, tmp_path: Path) -> None:
    write(tmp_path, {"blobs/1": '{"a": 1}'})
    (root / "tok").mkdir()
    (root / "tok" / "vocab.json").symlink_to(tmp_path / "blobs" / "1")
    captured = take(root, repo, make_settings(tokenizer={"path": "tok"}), probe=Tokenizers())
    assert captured.snapshot.tokenizer is not None
    (entry,) = trees.load(repo.objects, captured.snapshot.tokenizer.tree).entries
    assert (entry.mode, entry.size_bytes, captured.snapshot.tokenizer.probe_ids) == ("file", 8, None)
    assert any("no tokenizer.json" in note for note in captured.annotation.notes)


def test_a_tokenizer_without_its_library_is_an_error_with_two_remedies(root: Path, repo: Repository) -> None:
    class Absent(Tokenizers):
        def version(self) -> str | None:
            return None

    write(root, {"tok/tokenizer.json": "{}"})
    with pytest.raises(MissingExtra) as raised:
        take(root, repo, make_settings(tokenizer={"path": "tok"}), probe=Absent())
    assert "m5ws[tokenizer]" in raised.value.hint and "probe" in raised.value.hint
    captured = take(root, repo, make_settings(tokenizer={"path": "tok", "probe": ""}), probe=Absent())
    assert captured.snapshot.tokenizer is not None and captured.snapshot.tokenizer.probe_ids is None


def test_a_tokenizer_that_is_missing_or_broken_is_an_error(root: Path, repo: Repository) -> None:
    with pytest.raises(NotFound, match="'tok'"):
        take(root, repo, make_settings(tokenizer={"path": "tok"}))
    write(root, {"tok/tokenizer.json": "{nonsense"})
    with pytest.raises(M5Error, match=r"tokenizer\.json"):
        take(root, repo, make_settings(tokenizer={"path": "tok"}), probe=Tokenizers())
