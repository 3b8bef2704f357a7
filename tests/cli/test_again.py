"""`m5ws snapshot` in a workspace where nothing has moved: the answer is given again, and never where it is another."""

import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkouts import git, write
from m5ws import again
from m5ws.operations import repeat
from m5ws.repository import Repository, snapshots, trees
from m5ws.store.local import LocalStore
from m5ws.workspace import Workspace
from noted_answers import SETTINGS, Ask, noted_place, other_settings, swap, typed
from settling import age, end_second, settle
from workspace_changes import CHANGES, THE_SAME, as_long, then, write_text


def _fails(root: Path, status: int) -> None:
    """Have both the short command and the whole one end with `status`."""
    for words in (["snapshot"], ["-C", ".", "snapshot"]):
        with typed(root, *words, status=status):
            pass


def _stored(root: Path, what: str) -> list[Path]:
    return sorted(path for path in (root / ".m5ws" / "store" / what).rglob("*") if path.is_file())


def _unlink(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def _link(name: str, target: str) -> Callable[[Path], object]:
    return lambda root: (root / name).symlink_to(target)


def _lose(what: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in _stored(root, what):
            path.unlink()

    return change


def _cut(root: Path) -> None:
    for path in _stored(root, "objects"):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[:-1])


OWN: dict[str, Callable[[Path], object]] = {
    "the tokenizer, as long": as_long("tok/vocab.json", b"{'b': 1}"),
    "more of the tokenizer": write_text("tok/merges.txt", "a b\n"),
    "less of the tokenizer": _unlink("tok/special.json"),
    "data behind a link": as_long("elsewhere.log", b"b: 2\n"),
    "a lock file that git ignores": as_long("deps.log", b"numpy==2\n"),
    "no lock file": _unlink("deps.log"),
    "a setting": lambda root: other_settings(root, settings=SETTINGS + "[determinism]\ntf32 = true\n"),
    "a dataset, and what is checked out": as_long("known", b"hellO"),
    "a rule for what DVC leaves out": write_text(".dvcignore", "nothing\n"),
    "a link to nothing, to other nothing": then(_unlink("data/gone"), _link("data/gone", "nowhere")),
    "a folder on the way": lambda root: swap(root / "far"),
    "a folder on the way to a link's end": lambda root: swap(root.parent / f"{root.name}-far"),
    "a lock file's folder is a link out of here": then(
        lambda root: (root / "reqs").rename(root.parent / f"{root.name}-reqs"),
        lambda root: (root / "reqs").symlink_to(root.parent / f"{root.name}-reqs"),
    ),
}
_REFUSED = {"a dataset, and what is checked out", "a lock file's folder is a link out of here"}
_OF_GIT = (
    *("nothing", "a byte, with the old time", "touched", "a file more", "an untracked file, as long", "committed"),
    *("an ignored config file", "a config file behind a link", "data more", "a dataset that DVC tracks", "no index"),
)
"""Of what a glance tells, some; tests/operations/test_unchanged.py has all."""
_LOST = {"an object": _lose("objects"), "what is said of it": _lose("snapshots"), "the end of each object": _cut}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Workspaces whose answer is noted, one for each change."""
    base = tmp_path_factory.mktemp("again")
    made = {name: noted_place(base, name, number) for number, name in enumerate([*_OF_GIT, *OWN, *_LOST])}
    for root in made.values():
        age(root)
    # The first remembers a glance, the second what there is to be looked at, the third that all of it held still.
    for _ in range(3):
        for root in made.values():
            with typed(root, "snapshot"):
                settle(root)
    end_second(made.values())
    return made


@pytest.mark.parametrize("change", [*_OF_GIT, *OWN])
def test_an_answer_that_is_given_again_is_that_of_the_whole_command(
    places: dict[str, Path], ask: Ask, change: str
) -> None:
    root = places[change]
    before = ask(root, "snapshot")
    # What lies behind a link from a config file is never known from a glance.
    assert before.again == (change != "a config file behind a link")
    (CHANGES | OWN)[change](root)
    if change in _REFUSED:
        _fails(root, 2)
        return
    found = ask(root, "snapshot")
    whole = ask(root, "-C", ".", "snapshot")
    assert (found.out, found.err.partition(",")[0]) == (whole.out, whole.err.partition(",")[0])
    assert found.again == (change == "nothing") and not whole.again
    assert (found.out == before.out) == (change in THE_SAME or change == "a rule for what DVC leaves out")


def test_nothing_is_imported_where_nothing_has_moved(places: dict[str, Path]) -> None:
    """Else the whole command runs; what each test here shows would be shown of nothing."""
    root = places["nothing"]
    words = "import sys, m5ws.__main__; sys.argv = ['m5ws', 'snapshot']; m5ws.__main__.main(); "
    argv = [sys.executable, "-c", words + "print({'click', 'msgspec', 'subprocess', 'typing'} & {*sys.modules})"]
    done = [subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True) for _ in range(3)]
    assert done[1].stdout == done[2].stdout and done[1].stderr == done[0].stderr
    assert done[2].stdout.splitlines()[0] == done[0].stdout.splitlines()[0]
    assert done[2].stdout.splitlines()[1] == "set()"


@pytest.mark.parametrize("lost", _LOST)
def test_what_the_store_lost_is_found_out(places: dict[str, Path], ask: Ask, lost: str) -> None:
    root = places[lost]
    before = ask(root, "snapshot")
    _LOST[lost](root)
    if lost == "the end of each object":
        # It is damaged, and not gone: that is an error.
        _fails(root, 3)
        return
    assert ask(root, "snapshot")[::2] == (before.out, False)
    repo = Repository.open(LocalStore(root / ".m5ws" / "store"))
    assert repo.objects.has(before.out.strip())


def test_who_asks_matters_and_whoever_asks_otherwise_is_answered(
    places: dict[str, Path], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = places["nothing"]
    settle(root)
    first = [ask(root, "snapshot") for _ in range(5)][4]
    assert first.again
    for words in (["snapshot", "--json"], ["snapshot", "-m", "more"], ["-q", "snapshot"]):
        assert not ask(root, *words).again
    settle(root)
    assert [ask(root, "snapshot").again for _ in range(5)][4]
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert not ask(root, "snapshot").again
    monkeypatch.setattr(sys, "path", [*sys.path, "/elsewhere"])
    assert not ask(root, "snapshot").again


def test_what_moves_while_it_is_looked_at_is_not_noted(places: dict[str, Path], ask: Ask) -> None:
    root = places["nothing"]
    note = root / ".m5ws" / again.NAME
    settle(root)
    ask(root, "snapshot")
    for name in ("local.yaml", "tok/vocab.json", "data/x.bin"):
        note.unlink(missing_ok=True)
        os.utime(root / name, ns=(time.time_ns(), time.time_ns() + 10**9))
        ask(root, "snapshot")
        ask(root, "snapshot")
        assert not note.exists()
        os.utime(root / name)
        settle(root)
        assert [ask(root, "snapshot").again for _ in range(5)][4]


def _after(change: Callable[[Path], object], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a change come when the command has found its answer, and before it is noted."""
    note = repeat.note

    def late(*arguments: Any) -> None:
        change(root)
        note(*arguments)

    monkeypatch.setattr(repeat, "note", late)


_LATE: dict[str, Callable[[Path], object]] = {
    "no lock file": _unlink("deps.log"),
    "a folder on the way": lambda root: swap(root / "far"),
    "the tokenizer": write_text("tok/vocab.json", "{'c': 1}"),
    "a setting": lambda root: other_settings(root, settings=SETTINGS + "[determinism]\ntf32 = true\n"),
    "an object": _lose("objects"),
}


@pytest.mark.parametrize("change", _LATE)
@pytest.mark.parametrize("sure", [True, False])
def test_what_changes_between_the_answer_and_the_note_is_not_noted(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, change: str, sure: bool
) -> None:
    root = noted_place(tmp_path, change)
    age(root)
    for _ in range(3 if sure else 2):
        ask(root, "snapshot")
    if sure:
        monkeypatch.setenv("NCCL_DEBUG", "INFO")
    with monkeypatch.context() as patch:
        _after(_LATE[change], root, patch)
        assert not ask(root, "snapshot").again
    for _ in range(3):
        found, whole = ask(root, "snapshot"), ask(root, "-C", ".", "snapshot")
        assert found.out == whole.out
    repo = Repository.open(LocalStore(root / ".m5ws" / "store"))
    for tree in snapshots.load(repo, found.out.strip()).trees.values():
        for entry in trees.located(repo.objects, tree).entries:
            trees.read_file(repo.objects, entry)


def test_a_rule_above_the_workspace_is_seen(tmp_path: Path, ask: Ask) -> None:
    root = noted_place(tmp_path / "top", "nothing")
    git(tmp_path / "top", "init", "-q")
    (tmp_path / "top" / ".dvc").mkdir()
    age(root)
    assert [ask(root, "snapshot").again for _ in range(5)][4]
    write(tmp_path / "top", {".dvcignore": "known\n"})
    assert not ask(root, "snapshot").again


@pytest.mark.long
def test_an_answer_is_given_again_two_seconds_after_the_last_change(tmp_path: Path, ask: Ask) -> None:
    """No time is given here: all is as old as it is."""
    changes = [name for name in _OF_GIT if name != "a config file behind a link"]
    made = {name: noted_place(tmp_path, name, number) for number, name in enumerate(changes)}
    time.sleep(2.1)
    for change, root in made.items():
        assert ([ask(root, "snapshot").again for _ in range(5)][4], change) == (True, change)
        CHANGES[change](root)
        found, whole = ask(root, "snapshot"), ask(root, "-C", ".", "snapshot")
        assert (change, found.again, found.out) == (change, change == "nothing", whole.out)


def test_what_is_warned_of_is_warned_of_each_time(
    places: dict[str, Path], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = places["nothing"]
    watched = Workspace.watched

    def warning(*arguments: Any) -> Any:
        logging.getLogger("m5ws.somewhere").warning("mind the store")
        return watched(*arguments)

    (root / ".m5ws" / again.NAME).unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "watched", warning)
        said = [ask(root, "snapshot") for _ in range(5)]
    assert [(answer.again, "mind the store" in answer.err) for answer in said] == 5 * [(False, True)]


def test_it_is_started_like_any_program(places: dict[str, Path]) -> None:
    """With children that nobody waits for, with an open lock, with nobody who reads, and where git is not found."""
    root = places["nothing"]
    words = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    words += "os.execv(sys.executable, [sys.executable, '-m', 'm5ws', 'snapshot'])"
    answers = [
        subprocess.run([sys.executable, "-c", words], cwd=root, capture_output=True, text=True, check=False)
        for _ in range(4)
    ]
    assert {(answer.returncode, answer.stdout) for answer in answers} == {(0, answers[0].stdout)}
    argv = [sys.executable, "-m", "m5ws", "snapshot"]
    for _ in range(3):
        subprocess.run(argv, cwd=root, capture_output=True, check=True)
    for asked in (argv, [*argv, "--help"], [*argv, "--json"]):
        for buffered in ({}, {"PYTHONUNBUFFERED": "1"}):
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | buffered
            with open("/dev/full", "w") as full:
                full_disk = subprocess.run(asked, cwd=root, stdout=full, stderr=subprocess.PIPE, env=environment)
            assert (full_disk.returncode, full_disk.stderr.count(b"No space left")) == (2, 1), asked
    bare = {**os.environ, "PATH": "/nowhere"}
    refused = subprocess.run(argv, cwd=root, env=bare, capture_output=True, text=True, check=False)
    assert (refused.returncode, "Install git" in refused.stderr) == (2, True)


def test_git_is_handed_no_descriptor_but_its_own(places: dict[str, Path], tmp_path: Path) -> None:
    root, log = places["nothing"], tmp_path / "log"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nls /proc/$$/fd >> {log}\nexec {shutil.which("git")} "$@"\n')
    wrapper.chmod(0o755)
    opened, held = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR), 77
    os.dup2(opened, held)
    path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
    argv = [sys.executable, "-m", "m5ws", "snapshot"]
    subprocess.run(argv, cwd=root, env=os.environ | {"PATH": path}, pass_fds=[held], capture_output=True, check=True)
    os.close(held)
    os.close(opened)
    assert str(held) not in log.read_text().split()


def test_a_note_with_any_bit_changed_is_none(places: dict[str, Path], ask: Ask) -> None:
    root = places["nothing"]
    settle(root)
    assert [ask(root, "snapshot").again for _ in range(5)][4]
    note = root / ".m5ws" / again.NAME
    whole = note.read_bytes()
    chosen = random.Random(20261123).sample(range(8 * len(whole)), 300)
    for damaged in (
        *(whole[:cut] for cut in (0, 1, 20, 90, len(whole) - 1)),
        *(_flipped(whole, bit) for bit in chosen),
    ):
        note.write_bytes(damaged)
        assert again.Again(str(note.parent)).answer(["snapshot"], lambda: pytest.fail("it was believed")) is None
    assert ask(root, "snapshot").again is False


def _flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
