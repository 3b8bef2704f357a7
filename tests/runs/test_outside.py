"""Places outside of the work directory that a launch names, and that an attempt changed."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from m5ws.errors import UsageError
from m5ws.records.ledger import Notice
from m5ws.records.run import LaunchSpec
from m5ws.repository.repository import Repository
from m5ws.runs import work_directories
from m5ws.runs.outputs import outside
from tests.support.records import planted
from tests.support.workspace.checkouts import write

_FILES = {
    "home/work/out/x.pt": "",
    "home/beside/x.pt": "",
    "results/a/x.pt": "",
    "one.pt": "",
    "texts/a.json": "{}",
    "pickles/a.pkl": "",
    "epoch/model_3.pt": "",
    "epoch/other.json": "{}",
    "cache/models--a/blobs/x.pt": "",
    "other/m5ws-0000000000000001/work/x.pt": "",
    "workspace/.m5ws/x.pt": "",
}


def _changed(
    repo: Repository,
    folder: Path,
    *arguments: str,
    config: str = "",
    environment: Mapping[str, str] | None = None,
    begun_ns: int = 0,
) -> list[str]:
    """Return the places of the notices. The work directory is ROOT/home/work."""
    root = os.path.realpath(folder)
    write(folder, _FILES)
    (folder / "empty" / "deep").mkdir(parents=True, exist_ok=True)
    words = [argument.replace("ROOT", root) for argument in arguments]
    files = {"a.yaml": config.replace("ROOT", root)}
    pinned = planted.publish(repo, planted.snapshot(planted.tree(repo, folder / "given", files)))
    variables = {name: value.replace("ROOT", root) for name, value in (environment or {}).items()}
    run = planted.run(repo, "0123456789ab", pinned, spec=LaunchSpec(command=("x.py", *words), environment=variables))
    found = outside.notices(repo, run, folder / "home" / "work", begun_ns)
    assert all(kind == outside.OUTSIDE for kind, _ in found)
    return [message.partition(" in ")[2].partition(" (")[0].replace(root, "ROOT") for _, message in found]


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (("--out", "ROOT/results"), ["ROOT/results"]),
        (("--out=ROOT/results/", "ROOT/results"), ["ROOT/results"]),
        (("dir=ROOT/results/a",), ["ROOT/results/a"]),
        (("--save", "ROOT/one.pt"), ["ROOT/one.pt"]),
        (("../../results", "out/../../../one.pt"), ["ROOT/results", "ROOT/one.pt"]),
        (("-oROOT/results", "-l/", "-x"), ["ROOT/results"]),
        (("a,ROOT/results", "file://ROOT/pickles"), ["ROOT/results", "ROOT/pickles"]),
        (("ROOT/epoch/model", "ROOT/epoch/other"), ["ROOT/epoch/model*"]),
        (("ROOT/epoch/model_{step}.pt", "ROOT/epoch/{step}.pt"), ["ROOT/epoch/model_*", "ROOT/epoch"]),
        (("ROOT",), ["ROOT"]),
        (("out", "ROOT/home/work/out", "ROOT/home", "..", "../beside", "/", "results", "--lr", "1", "", "~nobody"), []),
        (("ROOT/absent", "ROOT/empty", "ROOT/texts", "a\0/b", "/absent", "ROOT/absent/x"), []),
        (("ROOT/cache", "ROOT/other", "ROOT/workspace"), []),
    ],
)
def test_places_with_files_are_noted(
    repo: Repository, tmp_path: Path, words: tuple[str, ...], places: list[str]
) -> None:
    assert _changed(repo, tmp_path, *words) == places


def test_places_in_variables_and_in_config_files_are_noted(repo: Repository, tmp_path: Path) -> None:
    config = "model:\n  output_dir: ROOT/results\n  lr: 1\n"
    assert _changed(repo, tmp_path, config=config, environment={"OUT": "ROOT/pickles"}) == [
        "ROOT/pickles",
        "ROOT/results",
    ]


def test_caches_are_no_places_of_results(repo: Repository, tmp_path: Path) -> None:
    variables = {"HF_HOME": "ROOT/results", "TORCH_HOME": "ROOT/results"}
    assert _changed(repo, tmp_path, config="model:\n  cache_dir: ROOT/results\n", environment=variables) == []


@pytest.mark.parametrize(
    "key", ["hf_save_dir", "checkpoint_cache_dir", "temp", "launch.output_dir", "args.out", "code"]
)
def test_a_key_that_looks_like_a_cache_is_a_place_of_results(repo: Repository, tmp_path: Path, key: str) -> None:
    assert _changed(repo, tmp_path, config=f"{key}: ROOT/results") == ["ROOT/results"]


def test_a_file_of_any_name_is_named_by_its_path_below_the_place(repo: Repository, tmp_path: Path) -> None:
    place = tmp_path / "deep"
    (place / "a").mkdir(parents=True)
    (place / "a" / os.fsdecode(b"mod\xe8le.pt")).touch()
    run = planted.run(repo, "0123456789ab", spec=LaunchSpec(command=("x.py", str(place))))
    ((_, message),) = outside.notices(repo, run, tmp_path / "home" / "work", 0)
    assert message.encode() and message.endswith(f"{place} (a/mod\\xe8le.pt)")


def test_places_in_files_that_the_command_names_are_noted(repo: Repository, tmp_path: Path) -> None:
    assert _changed(repo, tmp_path, "a.yaml", "none.json", config="output_dir: ROOT/results") == ["ROOT/results"]


def test_files_beside_a_work_directory_are_named_whatever_their_names(tmp_path: Path) -> None:
    home, attempt = tmp_path / "m5ws-1", tmp_path / "attempt"
    (home / "work").mkdir(parents=True)
    attempt.mkdir()
    (attempt / "work").symlink_to(home / "work")
    (home / work_directories._ATTEMPT).write_bytes(os.fsencode(os.path.realpath(attempt)))
    assert outside.beside(attempt) == []
    (home / work_directories.RESTORED).mkdir()
    assert outside.beside(attempt) == []
    for name in (b"last.pt", b"\xff\xfe"):
        (home / os.fsdecode(name)).touch()
    ((_, message),) = outside.beside(attempt)
    assert "../last.pt" in message and message.encode()


def test_a_link_counts_as_the_file_behind_it(repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "last.pt").symlink_to(tmp_path / "one.pt")
    (tmp_path / "named" / "gone.pt").symlink_to(tmp_path / "gone.pt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").symlink_to(tmp_path / "results")
    (tmp_path / "folder" / "back").symlink_to(tmp_path / "folder")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "back").symlink_to(tmp_path / "loop")
    places = ["ROOT/named", "ROOT/folder"]
    assert _changed(repo, tmp_path, *places, "ROOT/loop") == places


def test_pipes_and_texts_that_are_no_paths_are_passed_over(repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "a.pt")
    config = '{"a": "/a/\\ud800", "b": "ROOT/results"}'
    assert _changed(repo, tmp_path, "ROOT/pipes", "ROOT/pipes/a.pt", config=config) == ["ROOT/results"]


def test_files_from_before_the_start_are_not_noted(repo: Repository, tmp_path: Path) -> None:
    assert _changed(repo, tmp_path, "ROOT/results", begun_ns=time.time_ns() + 10**9) == []


@pytest.mark.parametrize("word", ["~/results", "$HOME/results", "${HOME}/results"])
def test_a_home_is_found(repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _changed(repo, tmp_path, word) == ["ROOT/results"]


def test_a_store_that_cannot_be_read_leaves_the_arguments(repo: Repository, tmp_path: Path) -> None:
    write(tmp_path, _FILES)
    run = planted.run(repo, "0123456789ab", spec=LaunchSpec(command=("x.py", str(tmp_path / "results"))))
    assert len(outside.notices(repo, run, tmp_path / "home" / "work", 0)) == 1


def test_a_replay_that_would_overwrite_them_is_refused(repo: Repository, tmp_path: Path) -> None:
    others = [Notice(kind="limit", message="x")]
    outside.refuse_overwriting("aaaa", others)
    write(tmp_path, _FILES)
    run = planted.run(repo, "0123456789ab", spec=LaunchSpec(command=("x.py", str(tmp_path / "results"))))
    found = outside.notices(repo, run, tmp_path / "home" / "work", 0)
    noted = [Notice(kind=kind, message=message) for kind, message in found]
    with pytest.raises(UsageError) as raised:
        outside.refuse_overwriting("aaaa", [*others, *noted, *noted])
    assert str(raised.value).count(str(tmp_path / "results")) == 1
