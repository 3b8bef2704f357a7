"""`m5ws snapshot` given again: data that git ignores is looked at by `find`, and any file of it is seen."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from checkouts import write
from m5ws import again, search, spawn
from m5ws.operations import repeat
from noted_answers import Ask, noted_place, other_settings, swap
from settling import age, settle
from workspace_changes import as_long


def test_more_data_than_is_looked_through_at_once_is_looked_at_each_time(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = noted_place(tmp_path, "nothing")
    monkeypatch.setattr(again, "MOST_FILES", 4)
    age(root)
    assert not any(ask(root, "snapshot").again for _ in range(5))
    monkeypatch.setattr(again, "MOST_FILES", 10**6)
    monkeypatch.setattr(search, "_MOST_BYTES", 400)
    assert not any(ask(root, "snapshot").again for _ in range(5))


@pytest.mark.parametrize("files", [3, 1100])
def test_much_data_is_looked_at_side_by_side_and_any_file_of_it_is_seen(tmp_path: Path, ask: Ask, files: int) -> None:
    root = noted_place(tmp_path, "nothing")
    for number in range(files):
        write(root, {f"data/{number:04d}.bin": "x", f"data/inner/{number % 40}/{number:04d}.bin": "x"})
    os.utime(root / "data", ns=(0, 0))
    age(root)
    assert [ask(root, "snapshot").again for _ in range(5)][4]
    for name in ("0002.bin", f"inner/{(files - 1) % 40}/{files - 1:04d}.bin"):
        (root / "data" / name).chmod(0o755)
        assert not ask(root, "snapshot").again
        settle(root)
        assert [ask(root, "snapshot").again for _ in range(5)][4]


def test_a_folder_that_is_another_while_it_is_looked_at_leaves_no_sure_note(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after, all is as it was; the answer is of the other."""
    root = noted_place(tmp_path, "nothing")
    age(root)
    right = ask(root, "snapshot").out
    note, before = repeat.note, again.before

    def swapped(*arguments: Any) -> dict[again.Witness, bytes]:
        seen = before(*arguments)
        swap(root / "far")
        return seen

    def back(*arguments: Any) -> None:
        (root / "far").rename(root / "far-other")
        (root / "far-before").rename(root / "far")
        note(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(again, "before", swapped)
        patch.setattr(repeat, "note", back)
        for _ in range(6):
            found = ask(root, "snapshot")
            assert (found.out == right, found.again) == (False, False)
    assert ask(root, "snapshot").out == right


def test_many_folders_of_data_take_no_more_processes_than_one(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = noted_place(tmp_path, "nothing")
    paths = [f"set-{number}" for number in range(70)]
    for path in paths:
        write(root, {f"{path}/a.bin": path, f"{path}/inner/b.bin": path})
    other_settings(root, settings=f"[data]\npaths = {paths}\n".replace("'", '"'))
    write(root, {".git/info/exclude": "/set-*\n/far*\nreqs\n"})
    age(root)
    assert [ask(root, "snapshot").again for _ in range(5)][4]
    started, start = list[str](), spawn.start

    def counted(program: str, *arguments: Any) -> spawn.Started:
        started.append(os.path.basename(program))
        return start(program, *arguments)

    monkeypatch.setattr(spawn, "start", counted)
    assert ask(root, "snapshot").again
    assert started.count("find") <= 4
    as_long("set-69/inner/b.bin", b"SET-69")(root)
    assert not ask(root, "snapshot").again


def test_what_was_begun_is_ended_where_more_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{number}/a": "" for number in range(9)})
    start, spawned = spawn.start, os.posix_spawn
    pipes, children = list[str](), list[int]()

    def scarce(*arguments: Any) -> spawn.Started:
        if len(pipes) == 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        started = start(*arguments)
        pipes.append(os.readlink(f"/proc/self/fd/{started.said}"))
        return started

    def noted(*arguments: Any, **options: Any) -> int:
        children.append(spawned(*arguments, **options))
        return children[-1]

    monkeypatch.setattr(spawn, "start", scarce)
    monkeypatch.setattr(os, "posix_spawn", noted)
    with pytest.raises(OSError, match="open files"):
        search.Search([str(tmp_path)])
    assert len(pipes) == len(children) == 3
    assert not {*pipes} & {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


@pytest.mark.parametrize("program", ["", "exit 1", "echo; exit 0"])
def test_without_a_find_that_tells_stamps_each_file_is_looked_at_each_time(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """As busybox's and macOS's are."""
    root, programs = noted_place(tmp_path / "top", "nothing"), tmp_path / "bin"
    programs.mkdir()
    (programs / "git").symlink_to(str(shutil.which("git")))
    if program:
        (programs / "find").write_text(f"#!/bin/sh\n{program}\n")
        (programs / "find").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    age(root)
    assert len({ask(root, "snapshot").out for _ in range(4)}) == 1
    (root / "data" / "x.bin").write_text("y")
    assert ask(root, "snapshot").out == ask(root, "-C", ".", "snapshot").out


def test_a_note_can_have_find_do_nothing_but_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its paths are used before it is known to be whole. Nor can it be waited for."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"kept": "x", "-delete": "x"})
    for path in ("-delete", "kept", ""):
        again.keep(str(tmp_path), [], [], b"", b"", {(again.BELOW, path): b""}, sure=True)
        assert again.Again(str(tmp_path)).answer([], list) is None
    assert (tmp_path / "kept").exists()
    (tmp_path / again.NAME).unlink()
    os.mkfifo(tmp_path / again.NAME)
    assert again.Again(str(tmp_path)).answer([], list) is None


def test_links_that_lead_further_than_is_looked_are_followed_each_time(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = noted_place(tmp_path, "nothing")
    monkeypatch.setattr(search, "_MOST_ROUNDS", 1)
    age(root)
    assert not any(ask(root, "snapshot").again for _ in range(5))
