"""The parts of a log in the store are the log, masked, whatever the moments at which they were stored."""

from pathlib import Path

import pytest

from m5ws.errors import M5Error
from m5ws.logs import parts
from m5ws.logs.parts import LogParts
from m5ws.repository.repository import Repository

_RUN = "7c1d0a9b8e2f"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


def _lines(repo: Repository, known: set[str] | None = None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in parts.load(repo, _RUN, 1, known if known is not None else set()):
        for name, lines in part.lines.items():
            found.setdefault(name, []).extend(lines)
    return found


def test_the_parts_of_all_nodes_are_the_lines_of_their_logs(repo: Repository, folder: Path) -> None:
    stored = LogParts(repo, _RUN, 1, 0, folder)
    other = folder.with_name("other")
    other.mkdir()
    (other / "rank-1.log").write_text("of the other node\n")
    written, known, seen = "", set[str](), list[str]()
    for number in range(5):
        with (folder / "rank-0.log").open("a") as log:
            log.write(f"line {number}\nhalf of ")
        written += f"line {number}\nhalf of "
        stored._due_s = 0.0
        stored.store()
        seen += _lines(repo, known).get("0", [])
    stored.store(last=True)
    LogParts(repo, _RUN, 1, 1, other).store(last=True)
    assert _lines(repo) == {"0": written.split("\n"), "1": ["of the other node"]}
    assert seen + _lines(repo, known)["0"] == written.split("\n")


def test_a_secret_is_masked_and_a_long_part_is_cut(repo: Repository, folder: Path) -> None:
    (folder / "launcher.log").write_text("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzzzzz\n")
    (folder / "rank-0.log").write_text("".join(f"{number}\n" for number in range(5_000)))
    LogParts(repo, _RUN, 1, 0, folder).store(last=True)
    found = _lines(repo)
    assert "wJalrXUtnFEMI" not in found["launcher"][0]
    assert len(found["0"]) == 2_001 and found["0"][0] == "0" and found["0"][-1] == "4999"


def test_a_store_that_fails_delays_the_lines(repo: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "rank-0.log").write_text("first\n")
    stored = LogParts(repo, _RUN, 1, 0, folder)

    def fail(*_: object) -> None:
        raise M5Error("away")

    with monkeypatch.context() as patched:
        patched.setattr(type(repo.store), "create", fail)
        stored.store(last=True)
    assert not _lines(repo)
    (folder / "rank-0.log").write_text("first\nsecond\n")
    stored.store(last=True)
    assert _lines(repo) == {"0": ["first", "second"]}
