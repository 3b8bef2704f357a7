"""Counts of samples in a store: nodes count each file once, and a killed node leaves whole parts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.data import Loader, Source, counting
from m5ws.data.counting import Home
from m5ws.data.kept import KeptFiles
from m5ws.data.origins import FolderOrigin
from m5ws.records.sample_counts import SAMPLES, SampleCounts
from m5ws.records.snapshot import ManifestFile
from m5ws.repository import bindings
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.datasets import written

_SMALL = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_DIGEST = "d" * 64


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


class _Killed(BaseException):
    """The end of a node inside its count."""


@_SMALL
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    nodes=st.lists(st.tuples(st.floats(0, 0.99), st.integers(0, 12)), max_size=4),
    least=st.integers(1, 60),
    most=st.integers(1, 9),
)
def test_a_killed_node_leaves_whole_parts_which_no_other_node_counts(
    sizes: list[int],
    nodes: list[tuple[float, int]],
    least: int,
    most: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "PARTS", (least, most))
    monkeypatch.setattr(counting, "_THREADS", 1)
    repo = Repository.create(LocalStore(tmp_path_factory.mktemp("s") / "store", durable=False))
    parts = counting._parts(sizes)
    samples = {3 * place: 1 + 7 * place % 5 for place in range(len(sizes))}
    everything = [sizes[place // 3] if place % 3 == 0 else 10**9 for place in range(3 * len(sizes))]

    def count(place: float, kill_after: int) -> tuple[int, ...]:
        counted: list[int] = []

        def one(file: int) -> int:
            if len(counted) == kill_after:
                raise _Killed
            counted.append(file)
            return samples[3 * file]

        known = {at for at in range(len(parts)) if repo.store.stat(f"{SAMPLES}{_DIGEST}/r-{at:02}")}
        try:
            return counting.count(Home(repo, place, everything), _DIGEST, "r", [*samples], one)
        finally:
            assert all(file not in parts[at] for at in known for file in counted), (
                "files of a stored part are not counted again"
            )

    for place, kill_after in nodes:
        try:
            assert count(place, kill_after) == tuple(samples.values())
        except _Killed:
            continue
    assert count(0.5, -1) == tuple(samples.values())
    assert count(0.0, 0) == tuple(samples.values()), "nothing is left to count"


@pytest.mark.parametrize("stored", [(1, 2), (5, 0, 5, 0), (), (5,) * 5])
def test_stored_counts_leave_out_no_file(stored: tuple[int, ...], repo: Repository) -> None:
    bindings.create(repo.store, f"{SAMPLES}{_DIGEST}/r-00", SampleCounts(counts=stored))
    counts = counting.count(Home(repo, 0.0, [10] * 4), _DIGEST, "r", range(4), [5, 5, 5, 0].__getitem__)
    assert counts == (5, 5, 5, 0)


@_SMALL
@given(sizes=st.lists(st.integers(0, 100), max_size=40), least=st.integers(1, 200), most=st.integers(1, 12))
def test_parts_cover_all_files_in_order(
    sizes: list[int], least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "PARTS", (least, most))
    parts = counting._parts(sizes)
    assert [file for part in parts for file in part] == [*range(len(sizes))]
    assert all(parts) and len(parts) <= most + 1


def _note_downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the files that are read in the remote from now on."""
    fetched: list[str] = []
    download = FolderOrigin.download

    def note(self: FolderOrigin, file: ManifestFile, begin: Any) -> None:
        fetched.append(file.path)
        download(self, file, begin)

    monkeypatch.setattr(FolderOrigin, "download", note)
    return fetched


def test_a_second_node_reads_the_counts_and_no_file(
    tmp_path: Path, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "PARTS", (64, 64))
    fetched = _note_downloads(monkeypatch)
    shards = [[{"id": 100 * number + row} for row in range(1 + number % 4)] for number in range(12)]
    written.write_jsonl(tmp_path / "web", shards)

    def start(node: str, rank: int = 0) -> tuple[int | None, list[str], Loader]:
        before = len(fetched)
        orders = SimpleNamespace(run="r1", spec=None, files=str(tmp_path / node), files_bytes=10**8, copies="")
        active = SimpleNamespace(context=orders, rank=rank, world=2, repo=repo)
        monkeypatch.setattr("m5ws.training.runtime.context._active", active)
        loader = Loader(Source(dataset=written.remote(tmp_path, "web", node)), batch_size=2, collate=list)
        return loader.steps_per_epoch, fetched[before:], loader

    steps, counted, first = start("one")
    assert steps == 15 and sorted(counted) == [f"{number:03}.jsonl" for number in range(12)]
    assert start("one")[:2] == (15, [])
    steps, counted, second = start("two", rank=1)
    assert (steps, counted) == (15, []), "the second node has an empty cache, and fetches nothing"
    assert second.description(lambda content: content.hex()) == first.description(lambda content: content.hex())
    assert {row["id"] for batch in second for row in batch}, "it reads the files that its steps need"


@pytest.mark.parametrize(("rows", "is_shared"), [(1, False), (30, True)])
def test_a_node_fetches_the_files_of_its_samples_and_of_windows_that_all_nodes_need(
    rows: int, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.write_npy(tmp_path / "web", [np.full((rows, 2), number) for number in range(48)])
    index: Any = {"batch_size": 12, "world": 2, "cache": tmp_path / "index", "collate": list}
    Loader(Source(dataset=written.remote(tmp_path, "web", "counted")), rank=0, **index)
    fetched = _note_downloads(monkeypatch)
    nodes = []
    for rank in range(2):
        before = len(fetched)
        loader = Loader(Source(dataset=written.remote(tmp_path, "web", f"node-{rank}"), window=3), rank=rank, **index)
        read = {int(row[0]) for batch in loader for row in batch}
        nodes.append(set(fetched[before:]))
        assert len(fetched[before:]) == len(nodes[-1]), "once a node"
        assert {f"{number:03}.npy" for number in read} == nodes[-1]
    assert nodes[0] | nodes[1] == {f"{number:03}.npy" for number in range(48)}
    assert bool(nodes[0] & nodes[1]) == is_shared


def test_kept_files_stay_within_the_limit_and_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    limit, made = 20_000, list[str]()

    def make(name: str) -> bytes:
        made.append(name)
        return name.encode() * 100

    def get(run: int, name: str) -> bytes:
        return KeptFiles(tmp_path / "cache", limit, f"run-{run}/").get(name, lambda: make(name))

    for run in range(40):
        for file in range(4):
            assert get(run, f"part-{file}") == f"part-{file}".encode() * 100
        held = [path for path in (tmp_path / "cache").rglob("*") if "samples" in path.parts and path.is_file()]
        assert sum(path.stat().st_size for path in held) <= limit
    made.clear()
    assert get(39, "part-3") == b"part-3" * 100 and not made, "the newest run's files stay"
    (kept,) = [path for path in held if path.parent.name == "run-39" and path.name == "part-2"]
    for damage in (lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data + b"x"):
        kept.chmod(0o600)
        kept.write_bytes(damage(kept.read_bytes()))
        made.clear()
        assert get(39, "part-2") == b"part-2" * 100 and made == ["part-2"]
