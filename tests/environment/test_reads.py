"""The content of files that a run read, and the files that changed since."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment import reads
from m5ws.records.ledger import Reads
from m5ws.records.reads import ReadPath
from m5ws.records.store import Format
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore

_FORMAT = Format(file_chunk_bytes=16, small_bytes=8, pack_bytes=32, chunk_bytes=64)


@given(data=st.binary(max_size=80))
def test_the_digest_of_a_file_is_the_digest_that_a_tree_has_of_it(tmp_path_factory: object, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("read")  # type: ignore[attr-defined]
    repo = Repository.create(LocalStore(folder / "store"), _FORMAT)
    (folder / "a").write_bytes(data)
    written = trees.write_tree(repo.objects, [SourceFile(path=b"a", location=str(folder / "a"))])
    (entry,) = trees.load(repo.objects, written.digest).entries
    read = reads.measure(repo.objects, str(folder / "a"))
    assert read is not None and (read.digest, read.size_bytes) == (entry.digest, len(data))


def test_a_large_file_is_compared_by_its_size_and_by_blocks(repo: Repository, tmp_path: Path) -> None:
    path, size = tmp_path / "large", reads.WHOLE_BYTES + 1
    os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), size)
    known = reads.measure(repo.objects, str(path))
    assert known is not None and known.sampled
    digests = {known.digest}
    for place in (0, size - 1):
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(b"x")
        changed = reads.measure(repo.objects, str(path))
        assert changed is not None and changed.digest not in digests
        digests.add(changed.digest)


def test_a_folder_is_compared_by_names_and_sizes(repo: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    digests = set[str | None]()
    for name, text in (("a", "1"), ("b", "1"), ("b", "12")):
        (folder / name).write_text(text)
        read = reads.measure(repo.objects, str(folder))
        assert read is not None and read.kind == "folder"
        digests.add(read.digest)
    assert len(digests) == 3


def test_a_file_with_a_name_of_a_secret_has_no_digest(repo: Repository, tmp_path: Path) -> None:
    for name in (".env", "id_rsa"):
        (tmp_path / name).write_text("x")
        read = reads.measure(repo.objects, str(tmp_path / name))
        assert read is not None and read.digest is None
    assert reads.measure(repo.objects, str(tmp_path / "missing")) is None


def test_a_file_that_was_written_during_the_run_has_no_digest(repo: Repository, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text("1")
    written_ns = file.stat().st_mtime_ns
    known, unknown = (reads.measure(repo.objects, str(file), written_ns + more) for more in (0, -1))
    assert known is not None and known.digest is not None
    assert unknown is not None and unknown.digest is None


def test_the_first_record_of_a_path_counts() -> None:
    first, later = (ReadPath(path="/a", digest=digit * 64) for digit in "01")
    known = reads.join([Reads(paths=(first,), hosts=("h",)), Reads(paths=(later,), hosts=("h",), more=True)])
    assert (known.paths, known.hosts, known.more) == ({"/a": first}, ("h",), True)
