"""The parts of a log in the store are the log, masked, whatever the moments at which they were stored."""

from pathlib import Path

import pytest

from m5ws import secret_scan
from m5ws.config.settings import NotifySettings, Settings
from m5ws.errors import M5Error
from m5ws.logs import reading
from m5ws.logs.parts import LogParts
from m5ws.logs.reading import Source
from m5ws.records.gc import RetentionRules
from m5ws.records.removal import Removal
from m5ws.repository import removals, usage
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import transfer
from m5ws.store.local import LocalStore
from m5ws.workspace import Workspace
from tests.support.records import planted
from tests.support.stores.passing_store import PassingStore

_RUN = "7c1d0a9b8e2f"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


def _lines(source: Source) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, lines in source.read(last=True):
        found.setdefault(name, []).extend(lines)
    return found


def _stored(repo: Repository) -> Source:
    return reading.Source(repo, _RUN, 1, Path("nowhere"))


def test_the_parts_of_all_nodes_are_the_lines_of_their_logs(repo: Repository, folder: Path) -> None:
    stored = LogParts(repo, _RUN, 1, 0, folder)
    other = folder.with_name("other")
    other.mkdir()
    (other / "rank-1.log").write_text("of the other node\n")
    written, following, seen = "", _stored(repo), list[str]()
    for number in range(5):
        with (folder / "rank-0.log").open("a") as log:
            log.write(f"line {number}\nhalf of ")
        written += f"line {number}\nhalf of "
        stored._due_s = 0.0
        stored.store()
        seen += _lines(following).get("0", [])
    stored.store(last=True)
    LogParts(repo, _RUN, 1, 1, other).store(last=True)
    assert _lines(_stored(repo)) == {"0": written.split("\n"), "1": ["of the other node"]}
    assert seen + _lines(following)["0"] == written.split("\n")


def test_a_secret_is_masked_and_a_long_part_is_cut(repo: Repository, folder: Path) -> None:
    (folder / "launcher.log").write_text("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzzzzz\n")
    (folder / "rank-0.log").write_text("".join(f"{number}\n" for number in range(5_000)))
    LogParts(repo, _RUN, 1, 0, folder).store(last=True)
    found = _lines(_stored(repo))
    assert "wJalrXUtnFEMI" not in found["launcher"][0]
    assert len(found["0"]) == 2_001 and found["0"][0] == "0" and found["0"][-1] == "4999"


@pytest.mark.parametrize("error", [M5Error("away"), ValueError("a defect")])
def test_an_error_delays_the_lines(
    repo: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (folder / "rank-0.log").write_text("first\n")
    stored = LogParts(repo, _RUN, 1, 0, folder)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(type(repo.store), "create", fail)
        stored.store(last=True)
    assert not _lines(_stored(repo))
    (folder / "rank-0.log").write_text("first\nsecond\n")
    stored.store(last=True)
    assert _lines(_stored(repo)) == {"0": ["first", "second"]}


def test_logs_are_counted_copied_checked_and_deleted_with_their_run(
    repo: Repository, folder: Path, tmp_path: Path
) -> None:
    code = planted.tree(repo, tmp_path / "code", {"train.py": "print('trained')\n"})
    planted.run(repo, _RUN, planted.publish(repo, planted.snapshot(code)))
    before = usage.measure(repo).runs[0].record_bytes
    (folder / "rank-0.log").write_text("a line\n")
    LogParts(repo, _RUN, 1, 0, folder).store(last=True)
    (key,) = (stat.key for stat in repo.store.list("logs/"))
    assert usage.measure(repo).runs[0].record_bytes == before + len(repo.store.get(key))
    other = Repository.create(LocalStore(tmp_path / "copy"))
    transfer.copy(repo, other, [("run", _RUN)])
    assert _lines(_stored(other)) == {"0": ["a line"]}
    assert fsck.check(repo).clean
    repo.objects.put(b"left behind")
    removals.publish(repo, Removal(run=_RUN, created_s=1.0))
    planned = gc.plan(repo, RetentionRules(), -60.0)
    execute.execute(repo, str(planned.id), "lock", grace_s=0.0)
    assert not list(repo.store.list("logs/"))
    assert fsck.check(repo).clean


def test_a_follower_lists_the_parts_once_and_asks_for_the_next_part_of_each_node(
    repo: Repository, folder: Path
) -> None:
    asked = list[tuple[str, str]]()
    watched = Repository(PassingStore(repo.store, lambda *call: asked.append(call)), repo.format)
    planted.run(repo, _RUN)
    planted.begin(repo, _RUN, nodes=2)
    other = folder.with_name("other")
    other.mkdir()
    nodes = [(LogParts(repo, _RUN, 1, node, path), path) for node, path in enumerate((folder, other))]
    following = reading.Source(watched, _RUN, 1, Path("nowhere"))
    assert not _lines(following)
    for number in range(3):
        for node, (stored, path) in enumerate(nodes[: 1 + number]):
            (path / f"rank-{node}.log").write_text("".join(f"{each}\n" for each in range(number + 1)))
            stored._due_s = 0.0
            stored.store()
        asked.clear()
        fresh = {"0": [str(number)], "1": ["0", "1"] if number == 1 else ["2"]}
        assert _lines(following) == {name: fresh[name] for name in ("0", "1")[: 1 + number]}
        assert [call for call, _ in asked].count("list") == (1 if number == 0 else 0)
        assert len(asked) <= 6
    asked.clear()
    assert not _lines(following)
    assert sorted(asked) == [("get", f"logs/{_RUN}/0001-{node}-00000{3 - node}") for node in (0, 1)]


def test_the_value_of_a_variable_of_notify_is_masked(
    repo: Repository, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_scan, "_known", set())
    url = "slack://tokenA/b/c"
    Workspace(tmp_path, Settings(notify=NotifySettings(urls=("${HOOK}",))), {"HOOK": url})
    (folder / "rank-0.log").write_text(f"sends to {url}\ndb_password=hunter2\nloss=0.25\n")
    LogParts(repo, _RUN, 1, 0, folder).store(last=True)
    assert _lines(_stored(repo)) == {"0": ["sends to ***", "db_password=***", "loss=0.25"]}
