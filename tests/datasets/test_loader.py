"""The loader: one sequence of samples for any number of ranks and workers, equal to a plain reference in memory."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.data import Loader, Source
from m5ws.data.formats import BadFile
from m5ws.data.order import sources_of
from m5ws.errors import UsageError
from m5ws.records.ledger import OtherLoader
from tests.datasets import mixture, written
from tests.datasets.written import Folder
from tests.support.records.samples import samples_at

_STEPS = 40
_RANKS = (1, 2, 3, 4, 8)
_WORKERS = range(5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    mixture.write(folder)
    return folder


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(itertools.islice(mixture.expected(), _STEPS))


def _read(loaders: list[Loader], steps: int) -> list[Any]:
    """Return the samples of each step, of the ranks in their order."""
    return [[mixture.plain(sample) for loader in loaders for sample in next(loader)] for _ in range(steps)]


def _rows(count: int) -> list[dict[str, int]]:
    return [{"id": number} for number in range(count)]


def _grid() -> Iterator[Any]:
    """Yield each number of ranks with two numbers of workers, and each number of workers; the rest for a campaign."""
    for world, workers in itertools.product(_RANKS, _WORKERS):
        is_here = workers in (0, 2) or world == 3
        yield pytest.param(world, workers, marks=() if is_here else pytest.mark.soak)


@pytest.mark.parametrize(("world", "workers"), _grid())
def test_a_mixture_with_packing_and_filters_equals_the_reference(
    world: int, workers: int, data: Path, expected: list[Any]
) -> None:
    loaders = mixture.loaders(data, world, workers)
    assert _read(loaders, _STEPS) == expected
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    assert min(source["epoch"] for source in states[0]["sources"].values()) >= 2, "two epochs of each source"
    assert len({json.dumps(loader.take_consumed()) for loader in loaders}) == 1


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attempts=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(_RANKS), st.booleans()), min_size=1, max_size=4))
def test_a_resume_by_other_ranks_continues_the_sequence(
    attempts: list[tuple[int, int, bool]], data: Path, expected: list[Any]
) -> None:
    state: Any = None
    seen = list[Any]()
    for steps, world, works in attempts:
        loaders = mixture.loaders(data, world, int(works))
        for loader in loaders if state is not None else []:
            loader.load_state_dict(json.loads(json.dumps(state)))
        seen += _read(loaders, min(steps, _STEPS - len(seen)))
        state = loaders[-1].state_dict()
    assert seen == expected[: len(seen)]


@pytest.mark.parametrize("pack", [False, True])
def test_recorded_ranges_name_the_samples_of_each_step(pack: bool, tmp_path: Path) -> None:
    shards = [[{"id": 100 * file + row} for row in range(5 + file)] for file in range(4)]
    written.write_jsonl(tmp_path / "web", shards)
    more: Any = {"pack": True, "length": 3, "tokens": lambda row: [row["id"]] * 2} if pack else {}
    source = Source(dataset=Folder(tmp_path / "web"), window=2, **more)
    loader: Loader = Loader(source, batch_size=4, seed=5, workers=2, collate=list)
    objects: dict[str, bytes] = {}

    def put(content: bytes) -> str:
        objects["index"] = content
        return "index"

    orders = sources_of(json.loads(json.dumps(loader.description(put))), objects.__getitem__)
    for step in range(20):
        try:
            batch = next(loader)
        except StopIteration:
            batch = next(loader)
        ids = {int(token) for row in batch for token in ([row["id"]] if isinstance(row, dict) else row)}
        ranges = loader.take_consumed()
        found = samples_at(orders["web"], ranges["web"])
        assert {shards[int(path[:3])][row]["id"] for _, path, row in found} == ids, step
        assert len(ranges["web"]) < 100
    assert loader.take_consumed() == {}


def test_an_epoch_ends_once_and_its_samples_come_once(tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(50)])
    loader: Loader = Loader(Source(dataset=Folder(tmp_path / "web")), batch_size=8, collate=list)
    assert len(loader) == 7
    epochs = [list(loader) for _ in range(3)]
    assert [len(batches) for batches in epochs] == [7, 7, 7]
    ids = [row["id"] for batches in epochs for batch in batches for row in batch]
    assert all(sorted(ids[50 * epoch : 50 * epoch + 50]) == [*range(50)] for epoch in range(3))
    loader.set_epoch(1)
    assert list(loader) == epochs[1]
    loader.set_epoch(2)
    assert list(loader) == epochs[2], "set_epoch of the epoch that begins changes nothing"


def test_a_framework_reads_whole_epochs_however_it_ends_them(tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(50)])

    def make() -> Loader:
        return Loader(Source(dataset=Folder(tmp_path / "web")), batch_size=8, collate=list)

    loader = make()
    expected = [list(loader) for _ in range(3)]
    counted, drained, broken = (make().dataloader() for _ in range(3))
    assert [list(itertools.islice(counted, len(counted))) for _ in range(3)] == expected
    assert [list(drained) for _ in range(3)] == expected
    assert list(itertools.islice(broken, 3)) == expected[0][:3]
    assert list(broken) == expected[0], "an iteration begins at the start of its epoch"
    broken.set_epoch(2)
    assert list(broken) == expected[2]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attempts=st.lists(
        st.tuples(st.sampled_from([3, 5, 8]), st.booleans(), st.integers(0, 9), st.integers(0, 20)),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_an_epoch_has_its_batches_from_its_start_after_changes_of_batch_size_and_files(
    attempts: list[tuple[int, bool, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    written.write_jsonl(folder / "web", [[{"id": 10 * file + row} for row in range(8)] for file in range(4)])
    state: Any = None
    for batch_size, is_forked, epochs, more in attempts:
        without = ("data/web/001.jsonl",) if is_forked else ()
        loader: Loader = Loader(
            Source(dataset=Folder(folder / "web"), window=2), batch_size=batch_size, without=without, collate=list
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
            done = state["samples"] - state["began"]["samples"]
            assert len(list(loader)) == max(0, -((done - len(loader) * batch_size) // batch_size))
        for _ in range(epochs):
            assert len(list(loader)) == len(loader)
        whole = loader.dataloader()
        begin = loader.state_dict()
        first = [next(loader) for _ in range(min(more, len(loader)))]
        if len(first) < len(loader):
            assert list(whole)[: len(first)] == first, "an iteration begins where its epoch began"
            loader.load_state_dict(begin)
            assert [next(loader) for _ in first] == first
        state = loader.state_dict()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.lists(st.lists(st.floats(0.01, 9), min_size=3, max_size=3), min_size=2, max_size=4),
    steps=st.integers(1, 30),
)
def test_each_source_has_its_share_after_every_change_of_the_weights(
    weights: list[list[float]], steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    for name in "abc":
        written.write_jsonl(folder / name, [[{"id": 0, "of": name}] * 5])
    state: Any = None
    for shares in weights:
        sources = [
            Source(dataset=Folder(folder / name, name), weight=share) for name, share in zip("abc", shares, strict=True)
        ]
        loader: Loader = Loader(sources, batch_size=4, collate=list)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        names = [row["of"] for _ in range(steps) for row in next(loader)]
        for name, share in zip("abc", shares, strict=True):
            assert abs(names.count(name) - len(names) * share / sum(shares)) < 2 * len(sources)
        state = loader.state_dict()


def test_a_batch_is_consumed_also_if_the_script_goes_to_another_epoch_after_it(tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(20)])
    loader: Loader = Loader(Source(dataset=Folder(tmp_path / "web")), batch_size=4, collate=list)
    next(loader)
    loader.set_epoch(3)
    next(loader)
    assert loader.take_consumed() == {"web": "0:0-4,3:0-4"}
    next(loader)
    assert loader.take_consumed() == {"web": "3:4-8"}


def test_files_of_the_whole_workspace_are_left_out_by_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.write_jsonl(tmp_path / "web", [[{"id": 10 * file + row} for row in range(6)] for file in range(3)])
    monkeypatch.chdir(tmp_path)
    for dataset in (".", "web", "./web/", "web/../web"):
        loader: Loader = Loader(
            Source(dataset=dataset, name="all"), batch_size=4, without=("web/001.jsonl",), collate=list
        )
        assert {row["id"] // 10 for batch in loader for row in batch} == {0, 2}, dataset


def test_an_error_names_the_file_and_the_row_of_a_sample(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text('{"id": 1}\n{"id"\n')
    loader: Loader = Loader(Source(dataset=Folder(tmp_path / "web"), shuffle=False), batch_size=1, collate=list)
    next(loader)
    with pytest.raises(BadFile, match=r"a\.jsonl#1 of data/web"):
        next(loader)
    (tmp_path / "web" / os.fsdecode(b"\xff.jsonl")).write_text("{}")
    with pytest.raises(BadFile, match="is not UTF-8"):
        Loader(Source(dataset=Folder(tmp_path / "web")), batch_size=1)


def test_a_framework_goes_on_at_each_batch_of_each_epoch(tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(50)])

    def make() -> Loader:
        return Loader(Source(dataset=Folder(tmp_path / "web")), batch_size=8, collate=list)

    loader = make()
    epochs = [list(loader) for _ in range(4)]
    read = make()
    for number in range(20):
        resumed = make().dataloader()
        resumed.leave_out(json.loads(json.dumps(read.state_dict())))
        epoch, done = divmod(number, len(read))
        assert list(resumed) == [None] * done + epochs[epoch][done:]
        assert list(resumed) == epochs[epoch + 1]
        assert next(read, None) is not None or next(read)


def test_a_mixture_goes_to_an_epoch_by_planning_all_before_it(data: Path) -> None:
    read, jumped = (mixture.loader(data, 0, 1, 0) for _ in range(2))
    read.steps_per_epoch = jumped.steps_per_epoch = 5
    epochs = [[[mixture.plain(row) for row in batch] for batch in read] for _ in range(3)]
    jumped.set_epoch(2)
    assert [[mixture.plain(row) for row in batch] for batch in jumped] == epochs[2]


def test_files_that_are_left_out_change_nothing_else(tmp_path: Path) -> None:
    shards = [[{"id": 10 * file + row} for row in range(6)] for file in range(5)]
    written.write_jsonl(tmp_path / "web", shards)
    dataset = Folder(tmp_path / "web")
    whole, parted = (
        Loader(Source(dataset=dataset, window=2), batch_size=4, without=without, collate=list, steps_per_epoch=30)
        for without in ((), ("data/web/002.jsonl",))
    )
    first, rest = ([row["id"] for batch in loader for row in batch] for loader in (whole, parted))
    kept = [number for number in first if number // 10 != 2]
    assert rest[: len(kept)] == kept
    with pytest.raises(UsageError, match="no sample"):
        Loader(Source(dataset=dataset), batch_size=4, without=("data/web",))


def test_a_changed_order_refuses_the_position(data: Path) -> None:
    state = mixture.loader(data, 0, 1, 0).state_dict()
    with pytest.raises(ValueError, match="order of the source json has changed"):
        mixture.loader(data, 0, 1, 0, seed=12).load_state_dict(state)


def test_reading_draws_from_no_global_generator(data: Path) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    for workers in (0, 1):
        next(mixture.loader(data, 0, 1, workers))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]


def test_augmentation_depends_on_the_sample_and_the_epoch_alone(tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(12)])

    def seen(world: int, workers: int) -> list[Any]:
        def noisy(row: Any, generator: np.random.Generator) -> Any:
            return row["id"], generator.integers(2**40)

        source = Source(dataset=Folder(tmp_path / "web"), transform=noisy)
        loaders = [
            Loader(source, batch_size=6, rank=rank, world=world, workers=workers, collate=list, steps_per_epoch=9)
            for rank in range(world)
        ]
        return [sample for _ in range(4) for loader in loaders for sample in next(loader)]

    plain = seen(1, 0)
    assert seen(3, 2) == plain
    assert len({number for _, number in plain}) == 24, "each epoch draws other numbers"


def test_each_format_returns_the_samples_that_were_written(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    image = pytest.importorskip("PIL.Image")
    assert pa is not None
    rows = [[{"id": 10 * file + row, "text": f"t{row}"} for row in range(9)] for file in range(3)]
    written.write_parquet(tmp_path / "parquet", rows)
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    members = [
        [{"__key__": f"a/{file}{row}".encode(), "cls": str(row).encode(), "json": b'{"x": 1}'} for row in range(4)]
        for file in range(2)
    ]
    written.write_tar(tmp_path / "tar", members)
    for folder in ("cat", "dog"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        image.fromarray(pixels).save(tmp_path / "images" / folder / "1.png")

    def read(name: str, count: int, **options: Any) -> list[Any]:
        loader = Loader(Source(dataset=Folder(tmp_path / name), shuffle=False, **options), batch_size=1, collate=list)
        return [batch[0] for batch in itertools.islice(loader, count)]

    assert read("parquet", 27) == [row for shard in rows for row in shard]
    assert read("parquet", 2, columns=("id",)) == [{"id": 0}, {"id": 1}]
    assert read("tar", 8) == [
        {"__key__": f"a/{file}{row}", "cls": row, "json": {"x": 1}} for file in range(2) for row in range(4)
    ]
    images = read("images", 2)
    assert [item["folder"] for item in images] == ["cat", "dog"]
    assert all(np.array_equal(item["image"], pixels) for item in images)


def test_batches_of_tokens_are_tensors_with_their_targets(tmp_path: Path) -> None:
    written.write_npy(tmp_path / "rows", [np.arange(41, dtype=np.uint16)])
    loader = Loader(Source(dataset=Folder(tmp_path / "rows"), length=8, extra=1), batch_size=5, workers=1)
    batch = next(loader)
    assert batch.shape == (5, 9) and batch.dtype == torch.int64
    assert sorted(batch[:, 0].tolist()) == [0, 8, 16, 24, 32]
    assert torch.equal(batch[:, 1:], batch[:, :-1] + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_named(workers: int, tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(9), _rows(9)])
    dataset = Folder(tmp_path / "web")
    loader = Loader(Source(dataset=dataset), batch_size=3, workers=workers, collate=list)
    (tmp_path / "web" / "001.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(BadFile, match=r"001\.jsonl has 1 samples, and its index has 9"):
        list(itertools.islice(loader, 6))
    (tmp_path / "web" / "001.jsonl").unlink()
    assert len(dataset.files) == 2


def test_an_index_is_kept_and_read_instead_of_the_files(tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(9)])
    dataset = Folder(tmp_path / "web")
    source = Source(dataset=dataset)
    Loader(source, batch_size=3, cache=tmp_path / "cache")
    (tmp_path / "web" / "000.jsonl").unlink()
    assert len(Loader(source, batch_size=3, cache=tmp_path / "cache")) == 3


def test_a_wrong_batch_size_or_source_is_refused(tmp_path: Path) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(9)])
    (tmp_path / "web" / "x.tar").write_bytes(b"")
    dataset = Folder(tmp_path / "web")
    with pytest.raises(UsageError, match="of all ranks together"):
        Loader(Source(dataset=dataset, format="jsonl"), batch_size=3, rank=0, world=2)
    with pytest.raises(UsageError, match="has jsonl and tar of a known format"):
        Loader(Source(dataset=dataset), batch_size=3)
    with pytest.raises(UsageError, match="needs a length"):
        Source(dataset=dataset, pack=True)


def test_loaders_with_other_functions_never_share_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written.write_jsonl(tmp_path / "web", [_rows(8), _rows(8)])
    dataset = Folder(tmp_path / "web")

    def read(remainder: int, cache: Path | None, name: str = "") -> set[int]:
        source = Source(dataset=dataset, name=name, keep=lambda sample: sample["id"] % 2 == remainder)
        return {sample["id"] for batch in itertools.islice(_loader(source, cache), 4) for sample in batch}

    assert [read(at, tmp_path / "cache") for at in (0, 1)] == [{0, 2, 4, 6}, {1, 3, 5, 7}]
    run = SimpleNamespace(run="r1", spec=None, files=str(tmp_path / "node"), files_bytes=10**6, copies="")
    events = list[Any]()
    active = SimpleNamespace(context=run, rank=0, world=1, emit=lambda kind, **fields: events.append((kind, fields)))
    monkeypatch.setattr("m5ws.training.runtime.context._active", active)
    assert read(0, None) == {0, 2, 4, 6}
    with pytest.raises(UsageError, match="two loaders measure the source web with different"):
        read(1, None)
    assert read(1, None, "evaluation") == {1, 3, 5, 7}
    assert events == [(OtherLoader, {"datasets": ("data/web",)})] * 2, "a loader without a session is reported once"
    run.run = "r2"
    assert read(1, None) == {1, 3, 5, 7}


def _loader(source: Source, cache: Path | None) -> Loader:
    return Loader(source, batch_size=2, collate=list, cache=cache)
