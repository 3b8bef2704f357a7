"""Output files of several nodes: one merged copy, or an error that names the path and both nodes."""

from pathlib import Path

import pytest

from m5ws.outputs import collect, merging, restoring, saved, storing
from m5ws.outputs.merging import OutputsConflict
from m5ws.records.run import Run
from m5ws.repository.references import outputs
from m5ws.repository.repository import Repository
from m5ws.work import inputs
from m5ws.work.inputs import AttemptInputs
from tests.support.records import planted
from tests.support.workspace.checkouts import write

_RUN = "a" * 12
_BEGUN = AttemptInputs(begun_ns=0, stamps={})


@pytest.fixture
def run(repo: Repository, tmp_path: Path) -> Run:
    code = planted.tree(repo, tmp_path / "code", {"x.py": "1"})
    made = planted.run(repo, _RUN, planted.publish(repo, planted.snapshot(code)))
    planted.begin(repo, _RUN, 1)
    return made


def _store(repo: Repository, run: Run, work: Path, node: int, given: AttemptInputs = _BEGUN, attempt: int = 1) -> None:
    storing.publish(repo, run, attempt, collect.collect(work, ("out",), given), node)


def _merged(repo: Repository, folder: Path) -> dict[str, str]:
    stored = saved.newest(repo, _RUN)
    assert stored is not None
    restoring.write(repo, stored, folder)
    return {str(path.relative_to(folder / "out")): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_files_of_all_nodes_are_merged_in_the_order_of_nodes(repo: Repository, run: Run, tmp_path: Path) -> None:
    for node in (10, 2, 0):
        work = tmp_path / str(node)
        write(work, {f"out/{node}/own": f"{node}", "out/equal": "=", f"out/only-{node}": ""})
        _store(repo, run, work, node)
    stored = saved.newest(repo, _RUN)
    assert stored is not None and stored.names == ("0001-0-final", "0001-2-final", "0001-10-final") and stored.final
    numbers = ("0", "2", "10")
    expected = {f"{n}/own": n for n in numbers} | {f"only-{n}": "" for n in numbers} | {"equal": "="}
    assert _merged(repo, tmp_path / "merged") == expected
    restoring.restore(repo, stored, tmp_path / "work")
    assert (tmp_path / "work" / "out" / "equal").stat().st_mtime == (tmp_path / "0" / "out" / "equal").stat().st_mtime


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ({"out/a": "1"}, {"out/a": "2"}, "out/a"),
        ({"out/a": "1"}, {"out/a/b": "1"}, "out/a"),
        ({"out/a/b/c": "1"}, {"out/a/b": "1"}, "out/a/b"),
    ],
)
def test_different_content_at_one_path_is_an_error_that_names_both_nodes(
    repo: Repository, run: Run, tmp_path: Path, first: dict[str, str], second: dict[str, str], path: str
) -> None:
    for node, files in enumerate((first, second)):
        write(tmp_path / str(node), files)
        _store(repo, run, tmp_path / str(node), node)
    message = f"node 0 and node 1 of attempt 1 wrote different content to {path}, of run {_RUN}"
    assert merging.find_conflict(repo, _RUN, 1) == message
    with pytest.raises(OutputsConflict, match=path):
        saved.newest_to_restore(repo, _RUN)
    alone = saved.newest(repo, _RUN, node=1)
    assert alone is not None
    restoring.write(repo, alone, tmp_path / "alone")


def test_links_of_different_targets_are_a_conflict(repo: Repository, run: Run, tmp_path: Path) -> None:
    for node in range(2):
        write(tmp_path / str(node), {"out/1": "=", "out/2": "="})
        (tmp_path / str(node) / "out" / "last").symlink_to(str(node + 1))
        _store(repo, run, tmp_path / str(node), node)
    assert "out/last" in str(merging.find_conflict(repo, _RUN, 1))


def test_a_restored_file_yields_to_a_change_and_a_removal_by_another_node(
    repo: Repository, run: Run, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    write(first, {f"out/{name}": "old" for name in ("kept", "changed", "removed", "0", "1")})
    (first / "out" / "last").symlink_to("kept")
    _store(repo, run, first, 0)
    stored = saved.newest(repo, _RUN)
    assert stored is not None
    planted.begin(repo, _RUN, 2)
    for node in range(2):
        work = tmp_path / str(node)
        restoring.restore(repo, stored, work)
        given = AttemptInputs(begun_ns=0, stamps={}, restored=inputs.stamps(work))
        inputs.save(tmp_path, work, given)
        assert inputs.load(tmp_path, work) == given
        write(work, {f"out/{node}": f"new {node}"})
        if node == 1:
            write(work, {"out/changed": "new"})
            (work / "out" / "removed").unlink()
            (work / "out" / "last").unlink()
            (work / "out" / "last").symlink_to("changed")
        _store(repo, run, work, node, given, attempt=2)
    expected = {"kept": "old", "changed": "new", "0": "new 0", "1": "new 1", "last": "new"}
    assert _merged(repo, tmp_path / "merged") == expected


def test_a_moment_has_the_newest_files_of_each_node_up_to_it() -> None:
    labels = ["0001-0-000001", "0001-1-000001", "0001-0-000003", "0001-10-000003", "0001-1-final", "0002-0-000000"]
    assert outputs.at(labels, "0001-0-000001") == ("0001-0-000001", "0001-1-000001")
    assert outputs.at(labels, "0001-10-000003") == ("0001-0-000003", "0001-1-000001", "0001-10-000003")
    assert outputs.at(labels, "0001-1-final") == ("0001-0-000003", "0001-1-final", "0001-10-000003")
    assert outputs.at(labels, "0002-0-000000") == ("0002-0-000000",)
