"""Trees: a pure function of content, exact in both directions, and refused if they could write elsewhere."""

import os
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.errors import CorruptObject, UsageError
from m5ws.records.store import Format
from m5ws.records.tree import Tree
from m5ws.repository.files import trees
from m5ws.repository.files import validation as entries
from m5ws.repository.files import writer as capture
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.objects import Objects, write_parts
from m5ws.repository.repository import Repository
from m5ws.store.interface import ObjectStore
from m5ws.store.local import LocalStore
from tests.support.faults.settling import settle
from tests.support.stores.passing_store import PassingStore

_SMALL = Format(chunk_bytes=64, file_chunk_bytes=64, pack_bytes=96, small_bytes=48)


def _allowed(name: bytes) -> bool:
    try:
        entries.check_paths([SourceFile(path=name, location="")], "of one file")
    except CorruptObject:
        return False
    return b"/" not in name


_names = st.binary(min_size=1, max_size=12).filter(_allowed)
_files = st.dictionaries(_names, st.tuples(st.binary(max_size=300), st.booleans()), max_size=12)


def _sources(folder: Path) -> list[SourceFile]:
    found = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return [SourceFile(path=os.fsencode(path.relative_to(folder)), location=path) for path in found]


def _written(objects: Objects, folder: Path, dry_run: bool = False) -> capture.TreeWriter:
    """Return a writer that has written all files of a folder, but not their tree."""
    writer = capture.TreeWriter(objects, None, dry_run, 0)
    files = sorted(_sources(folder), key=lambda file: file.path)
    writer.write(files, [os.lstat(file.location) for file in files], None)
    return writer


def _read_back(folder: Path) -> dict[bytes, tuple[bytes, bool]]:
    return {
        os.fsencode(path.name): (path.read_bytes(), os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100))
        for path in folder.iterdir()
    }


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=_files)
def test_materialised_files_equal_the_source_files(tmp_path_factory: pytest.TempPathFactory, files: dict) -> None:  # type: ignore[type-arg]
    base = tmp_path_factory.mktemp("trees")
    repo = Repository.create(LocalStore(base / "store"), _SMALL)
    source = base / "source"
    source.mkdir()
    for name, (data, executable) in files.items():
        path = source / os.fsdecode(name)
        path.write_bytes(data)
        path.chmod(0o755 if executable else 0o644)
    written = trees.write_tree(repo.objects, _sources(source))
    materialise(repo.objects, [trees.load(repo.objects, written.digest)], base / "target")
    assert _read_back(base / "target") == files
    again = trees.write_tree(repo.objects, _sources(base / "target"))
    assert again.digest == written.digest and again.new_bytes == 0


def test_packs_have_a_minimum_size_and_a_new_file_changes_few_packs(tmp_path: Path) -> None:
    form = Format(pack_bytes=1 << 16)
    repo = Repository.create(LocalStore(tmp_path / "store"), form)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2000):
        (source / f"{number:05d}").write_bytes(b"%d" % number * 60)

    def packs() -> dict[str, int]:
        sizes: dict[str, int] = {}
        for entry in trees.load(repo.objects, trees.write_tree(repo.objects, _sources(source)).digest).entries:
            sizes[entry.parts[0].object] = sizes.get(entry.parts[0].object, 0) + entry.size_bytes
        return sizes

    before = packs()
    assert min(list(before.values())[:-1]) >= form.pack_bytes // 4
    assert max(before.values()) <= form.pack_bytes
    (source / "00000-more").write_bytes(b"more" * 50)
    after = packs()
    assert 1 <= len(after.keys() - before.keys()) <= len(after) // 4


@pytest.mark.parametrize(("least", "most"), [(100, 300), (260, 500), (300, 301), (600, 1000)])
def test_pack_boundaries_realign_after_a_change_for_any_file_sizes(tmp_path: Path, least: int, most: int) -> None:
    """Sizes in 1,024ths of the defaults, up to the largest small file."""
    repo = Repository.create(
        LocalStore(tmp_path / "store"),
        Format(pack_bytes=8192, small_bytes=1024, chunk_bytes=1024, file_chunk_bytes=1024),
    )
    source = tmp_path / "source"
    source.mkdir()
    draw = random.Random(least)
    for number in range(1600):
        (source / f"{number:05d}").write_bytes(draw.randbytes(draw.randrange(least, most)))
    before = _written(repo.objects, source)
    (source / "0").write_bytes(draw.randbytes(least))
    after = _written(repo.objects, source)
    assert least <= after.new_bytes <= before.new_bytes / 10


def test_new_bytes_of_equal_chunks_are_counted_once(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"), _SMALL)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        (source / f"{number}").write_bytes(bytes(64 * 8))
    for dry_run in (True, False):
        assert _written(repo.objects, source, dry_run).new_bytes == 64


def test_the_index_saves_reading_and_sees_every_change(repo: Repository, tmp_path: Path) -> None:
    source, index = tmp_path / "source", tmp_path / "index"
    source.mkdir()
    for number in range(20):
        path = source / f"{number}"
        path.write_bytes(b"%d" % number)
        os.utime(path, (1_000_000, 1_000_000))
    settle(source)
    with Index(index) as opened:
        first = trees.write_tree(repo.objects, _sources(source), opened)
    with Index(index) as opened:
        again = trees.write_tree(repo.objects, _sources(source), opened)
    assert again.digest == first.digest and again.unchanged
    (source / "7").write_bytes(b"x")
    os.utime(source / "7", (1_000_000, 1_000_000))
    with Index(index) as opened:
        changed = trees.write_tree(repo.objects, _sources(source), opened)
    assert changed.digest != first.digest
    assert trees.write_tree(repo.objects, _sources(source)).digest == changed.digest


def test_a_file_that_keeps_changing_is_an_error(repo: Repository, tmp_path: Path) -> None:
    with pytest.raises(FileChanged):
        trees.write_tree(repo.objects, [SourceFile(path=b"status", location=Path("/proc/self/stat"))])


def test_a_target_in_use_is_refused(repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    with pytest.raises(UsageError):
        materialise(repo.objects, [Tree(entries=())], tmp_path / "target")
    assert (tmp_path / "target" / "mine").read_text() == "mine"


class _Meeting(PassingStore):
    """A store in which creates of objects wait for each other in pairs."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, self._meet)
        self._gate = threading.Barrier(2)

    def _meet(self, operation: str, key: str) -> None:
        if operation == "create" and key.startswith("objects/"):
            with suppress(threading.BrokenBarrierError):
                self._gate.wait(60)


@pytest.mark.parametrize(("said", "cut"), [(1024, [1024, 1024, 952]), (4096, [3000])])
def test_files_are_cut_by_the_file_chunk_size_of_the_store(tmp_path: Path, said: int, cut: list[int]) -> None:
    form = Format(chunk_bytes=4096, file_chunk_bytes=said, small_bytes=512, pack_bytes=2048)
    Repository.create(LocalStore(tmp_path / "store"), form)
    repo = Repository.open(LocalStore(tmp_path / "store"))
    objects = repo.objects
    (tmp_path / "source").mkdir()
    data = random.Random(1).randbytes(3000)
    (tmp_path / "source" / "large").write_bytes(data)
    (entry,) = trees.load(objects, trees.write_tree(objects, _sources(tmp_path / "source")).digest).entries
    assert [part.size_bytes for part in entry.parts] == cut and trees.read_file(objects, entry) == data
    assert [part.size_bytes for part in write_parts(objects, [("tensor", data)])["tensor"]] == [3000]


def test_the_index_of_another_store_does_not_affect_the_cut_of_files(tmp_path: Path) -> None:
    """In a workspace with a replaced store, the objects of the old store do not count."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large").write_bytes(random.Random(1).randbytes(3000))
    files = _sources(tmp_path / "source")
    settle(tmp_path / "source")
    for name, said in (("before", 4096), ("after", 1024), ("again", 4096)):
        form = Format(chunk_bytes=4096, file_chunk_bytes=said, small_bytes=512, pack_bytes=2048)
        repo = Repository.create(LocalStore(tmp_path / name), form)
        with Index(tmp_path / "index") as index:
            written = trees.write_tree(repo.objects, files, index)
            assert trees.is_still(repo.objects, files, index, written.digest)
        (entry,) = trees.load(repo.objects, written.digest).entries
        assert len(entry.parts) == (3 if said == 1024 else 1)


def test_a_new_store_cuts_files_finer_than_tensors(tmp_path: Path) -> None:
    form = Repository.create(LocalStore(tmp_path / "store")).format
    assert form.small_bytes < form.file_chunk_bytes < form.chunk_bytes


def test_chunks_of_several_files_are_uploaded_in_parallel(tmp_path: Path) -> None:
    """Files of one chunk each, like most shards of a dataset. One after another they would wait for ever."""
    meeting = _Meeting(LocalStore(tmp_path / "store"))
    objects = Objects(meeting, _SMALL)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        (source / f"{number}").write_bytes(os.urandom(60))
    writer = capture.TreeWriter(objects, None, False, 0)
    files = sorted(_sources(source), key=lambda file: file.path)
    entries = writer.write(files, [os.lstat(file.location) for file in files], None).entries
    assert not meeting._gate.broken
    assert writer.new_bytes == 8 * 60
    assert [objects.read(entry.parts[0]) for entry in entries] == [Path(file.location).read_bytes() for file in files]


def test_the_presence_of_unchanged_chunks_is_checked_in_few_requests(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    store = PassingStore(LocalStore(tmp_path / "store"), lambda operation, key: asked.append((operation, key)))
    repo = Repository.create(store, _SMALL)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(100):
        (source / f"{number}").write_bytes(os.urandom(60))
    settle(source)
    for change in ("first", "new"):
        (source / change).write_bytes(b"small")
        asked.clear()
        with Index(tmp_path / "index") as index:
            trees.write_tree(repo.objects, _sources(source), index)
    assert sum(operation in ("stat", "list") for operation, _ in asked) < 10


def test_a_final_check_of_unchanged_files_sends_no_request(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    store = PassingStore(LocalStore(tmp_path / "store"), lambda operation, key: asked.append((operation, key)))
    repo = Repository.create(store, _SMALL)
    source = tmp_path / "source"
    source.mkdir()
    for size in (0, 10, 60, 300):
        (source / f"{size}").write_bytes(os.urandom(size))
    settle(source)
    with Index(tmp_path / "index") as index:
        written = trees.write_tree(repo.objects, _sources(source), index)
        asked.clear()
        assert trees.is_still(repo.objects, _sources(source), index, written.digest)
        assert not asked
        (source / "10").write_bytes(os.urandom(10))
        assert not trees.is_still(repo.objects, _sources(source), index, written.digest)


def test_a_rewritten_tree_is_the_tree_of_the_rewritten_files(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"), _SMALL)
    source = tmp_path / "source"
    source.mkdir()
    for name, size in (("empty", 0), ("kept", 20), ("large", 200), ("script", 30), ("small", 30)):
        (source / name).write_bytes(name.encode() * (size // len(name)))
    (source / "script").chmod(0o755)
    (source / "link").symlink_to("kept")
    before = trees.write_tree(repo.objects, _sources(source)).digest
    loaded = trees.load(repo.objects, before)
    new = {b"empty": b"1", b"small": b"x" * 130, b"large": b"", b"script": b"run"}
    rewritten = trees.rewrite_tree(repo.objects, loaded.entries, new, loaded.packs)
    for path, data in new.items():
        (source / os.fsdecode(path)).write_bytes(data)
    assert rewritten == trees.write_tree(repo.objects, _sources(source)).digest
