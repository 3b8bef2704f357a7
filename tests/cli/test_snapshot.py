"""`m5ws snapshot` as it is typed: one digest, the same for the same state, and nothing heavy loaded."""

import mmap
from pathlib import Path
from typing import Any

from tests.support.faults.settling import settle
from tests.support.workspace import command_line


def _store(place: Path) -> list[Path]:
    return sorted(path for path in (place / ".m5ws" / "store").rglob("*") if path.is_file())


def test_snapshot_prints_only_the_digest_on_stdout(m5: Any, place: Path) -> None:
    done = m5("snapshot", "-m", "first")
    assert done.status == 0
    assert len(done.out) == 65 and int(done.out, 16)
    assert "3 files" in done.err
    assert (place / ".m5ws" / ".gitignore").read_text() == "*\n"
    assert "first" in m5("ls").out


def test_a_quiet_snapshot_prints_nothing_on_stderr(m5: Any, place: Path) -> None:
    assert m5("-q", "snapshot").err == ""


def test_a_dry_run_prints_the_id_and_publishes_nothing(m5: Any, place: Path) -> None:
    planned = m5("snapshot", "--dry-run")
    assert planned.status == 0
    assert _store(place) == []
    assert m5("snapshot").out == planned.out


def test_snapshot_as_json_prints_the_record(m5: Any, place: Path) -> None:
    document = m5("snapshot", "--json", "-m", "hi").document
    assert document["snapshot"]["code"]["commit"] is not None
    assert document["annotation"]["message"] == "hi"
    assert m5("show", document["id"], "--json").document["snapshot"] == document["snapshot"]


def test_rehash_reads_a_changed_file_with_unchanged_stamps(place: Path) -> None:
    path = place / "untracked.txt"
    path.write_bytes(b"a" * mmap.PAGESIZE)

    def taken(*options: str) -> str:
        return command_line.call("-C", str(place), "snapshot", *options).stdout

    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = ord("b")
        settle(place)
        first = taken()
        mapped[0] = ord("c")
        assert taken() == first
        assert len({first, taken("--rehash"), taken()}) == 2
