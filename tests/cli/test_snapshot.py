"""`m5ws snapshot` as it is typed: one digest, the same for the same state, and nothing heavy loaded."""

import json
import mmap
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.settling import settle
from tests.support.workspace import command_line

HEAVY = {"torch", "mlflow", "dvc", "deepspeed", "transformers", "git"}


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


def test_equal_files_give_the_same_snapshot_id_in_every_folder(m5: Any, place: Path, tmp_path: Path) -> None:
    first = m5("snapshot").out
    assert m5("snapshot", "-m", "another message").out == first
    shutil.copytree(place, tmp_path / "elsewhere", ignore=shutil.ignore_patterns(".m5ws"))
    assert m5("-C", tmp_path / "elsewhere", "snapshot").out == first


def test_a_changed_file_gives_another_snapshot_id(m5: Any, place: Path) -> None:
    first = m5("snapshot").out
    (place / "untracked.py").write_text("new\n")
    assert m5("snapshot").out != first


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


def test_a_secret_is_refused_by_name_with_the_way_out(m5: Any, place: Path) -> None:
    (place / ".env").write_text("API_TOKEN=abcdef0123456789abcdef0123456789\n")
    done = m5("snapshot")
    assert (done.status, done.out) == (2, "")
    assert ".env" in done.err and "hint:" in done.err and "exclude" in done.err
    assert "abcdef0123456789" not in done.err


def test_snapshot_loads_no_heavy_module(place: Path) -> None:
    code = "import sys, json; from m5ws.cli import main; main(sys.argv[1:]); print(json.dumps([*sys.modules]))"
    for words in (["snapshot"], ["snapshot"], ["snapshot", "-m", "again"]):
        argv = [sys.executable, "-c", code, "-C", str(place), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        digest, modules = done.stdout.splitlines()
        assert len(digest) == 64
        assert not HEAVY & set(json.loads(modules))


@pytest.mark.parametrize("template", ["gpt-fsdp", "gpt-deepspeed"])
def test_a_template_is_a_workspace_that_other_verbs_take(m5: Any, tmp_path: Path, template: str) -> None:
    made = m5("init", "--template", template, tmp_path / "w", "--json")
    assert made.status == 0
    assert {"m5ws.toml", "train.py", "config.yaml"} <= set(made.document["files"])
    assert not any(path.is_symlink() for path in (tmp_path / "w").rglob("*"))
    assert m5("-C", tmp_path / "w", "ls").status == 0


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
