"""`m5ws snapshot` in a workspace where nothing has moved: the answer is given again, and never where it is another."""

import errno
import gc
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import m5ws.__main__
from checkouts import git, write
from m5ws import again, spawn
from m5ws.adapters import git_start
from m5ws.operations import repeat
from m5ws.repository import Repository, snapshots, trees
from m5ws.store.local import LocalStore
from m5ws.workspace import Workspace
from settling import settle
from workspace_changes import CHANGES, THE_SAME, as_long, make, then, write_text

_SETTINGS = """
[config]
files = ["config.yaml", "local.yaml", "conf/*.yaml"]
[data]
paths = ["data", "far/set"]
[tokenizer]
path = "tok"
probe = ""
[environment]
locks = ["deps.log", "reqs/more.log"]
"""
_PIN = "outs:\n- md5: 5d41402abc4b2a76b9719d911017c592\n  path: known\n  hash: md5\n"


class Answer(NamedTuple):
    """What a command printed, and whether that was what was noted."""

    out: str
    err: str
    again: bool


Ask = Callable[..., Answer]


@contextmanager
def _typed(root: Path, *words: str) -> Iterator[list[bool]]:
    """Run `m5ws` with these words in `root`, and yield whether the answer was one that was noted."""
    hidden, here, argv, threshold = os.environ.pop("PYTEST_CURRENT_TEST", ""), os.getcwd(), sys.argv, gc.get_threshold()
    answer, noted = again.Again.answer, list[bool]()

    def watched(*arguments: Any) -> again.Note | None:
        found = answer(*arguments)
        noted.append(found is not None)
        return found

    os.chdir(root)
    sys.argv = ["m5ws", *words]
    again.Again.answer = watched  # type: ignore[assignment, method-assign]
    try:
        assert m5ws.__main__.main() == 0
        yield noted
    finally:
        git_start.begin_ahead(os.sep, {})  # forgets what this command began
        again.Again.answer, sys.argv = answer, argv  # type: ignore[method-assign]
        gc.set_threshold(*threshold)
        os.chdir(here)
        os.environ["PYTEST_CURRENT_TEST"] = hidden


def _status(root: Path, *words: str) -> int:
    argv = [sys.executable, "-m", "m5ws", *words]
    return subprocess.run(argv, cwd=root, capture_output=True, check=False).returncode


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    """Run `m5ws` as it is typed, and return what came of it."""

    def call(root: Path, *words: str) -> Answer:
        capfd.readouterr()
        with _typed(root, *words) as noted:
            said = capfd.readouterr()
            return Answer(said.out, said.err, any(noted))

    return call


def _other(root: Path, *, settings: str) -> None:
    write(root, {"m5ws.toml": settings})


def _stored(root: Path, what: str) -> list[Path]:
    return sorted(path for path in (root / ".m5ws" / "store" / what).rglob("*") if path.is_file())


def _swapped(folder: Path) -> None:
    """Put another folder, with files that are older than any look, in the place of one; neither is changed."""
    folder.rename(folder.with_name(f"{folder.name}-before"))
    folder.with_name(f"{folder.name}-other").rename(folder)


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
    "a setting": lambda root: _other(root, settings=_SETTINGS + "[determinism]\ntf32 = true\n"),
    "a dataset, and what is checked out": as_long("known", b"hellO"),
    "a rule for what DVC leaves out": write_text(".dvcignore", "nothing\n"),
    "a link to nothing, to other nothing": then(_unlink("data/gone"), _link("data/gone", "nowhere")),
    "a folder on the way": lambda root: _swapped(root / "far"),
    "a folder on the way to a link's end": lambda root: _swapped(root.parent / f"{root.name}-far"),
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


def _place(base: Path, change: str, number: int = 0) -> Path:
    """Make a workspace with something of everything that settings can name, and return its folder."""
    root = base / str(number)
    make(root, change)
    write(root, {"m5ws.toml": _SETTINGS, "tok/vocab.json": "{'a': 1}", "tok/special.json": "{}"})
    write(root, {"deps.log": "numpy==1\n", "known": "hello", "known.dvc": _PIN})
    write(root, {"far/set/a.bin": "a", "far-other/set/a.bin": "b", "reqs/more.log": "torch==2\n"})
    write(root, {".git/info/exclude": ".dvcignore\n/far*\nreqs\n"})
    write(base, {f"{root.name}-far/inner/a.bin": "a", f"{root.name}-far-other/inner/a.bin": "b"})
    (root / "data" / "link").symlink_to("../elsewhere.log")
    (root / "data" / "gone").symlink_to("nothing")
    (root / "data" / "behind").symlink_to(base / f"{root.name}-far" / "inner")
    git(root, "add", "m5ws.toml")
    return root


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Workspaces whose answer is noted, one for each change."""
    base = tmp_path_factory.mktemp("again")
    made = {name: _place(base, name, number) for number, name in enumerate([*_OF_GIT, *OWN, *_LOST])}
    time.sleep(2.1)
    # The first remembers a glance, the second what there is to be looked at, the third that all of it held still.
    for _ in range(3):
        for root in made.values():
            with _typed(root, "snapshot"):
                settle(root)
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
        assert [_status(root, *words) for words in (["snapshot"], ["-C", ".", "snapshot"])] == [2, 2]
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
        assert [_status(root, *words) for words in (["snapshot"], ["-C", ".", "snapshot"])] == [3, 3]
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
    "a folder on the way": lambda root: _swapped(root / "far"),
    "the tokenizer": write_text("tok/vocab.json", "{'c': 1}"),
    "a setting": lambda root: _other(root, settings=_SETTINGS + "[determinism]\ntf32 = true\n"),
    "an object": _lose("objects"),
}


@pytest.mark.parametrize("change", _LATE)
@pytest.mark.parametrize("sure", [True, False])
def test_what_changes_between_the_answer_and_the_note_is_not_noted(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, change: str, sure: bool
) -> None:
    root = _place(tmp_path, change)
    settle(root)
    time.sleep(2.1)
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
    root = _place(tmp_path / "top", "nothing")
    git(tmp_path / "top", "init", "-q")
    (tmp_path / "top" / ".dvc").mkdir()
    settle(root)
    time.sleep(2.1)
    assert [ask(root, "snapshot").again for _ in range(5)][4]
    write(tmp_path / "top", {".dvcignore": "known\n"})
    assert not ask(root, "snapshot").again


def test_more_data_than_is_looked_through_at_once_is_looked_at_each_time(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _place(tmp_path, "nothing")
    monkeypatch.setattr(again, "MOST_FILES", 4)
    settle(root)
    time.sleep(2.1)
    assert not any(ask(root, "snapshot").again for _ in range(5))
    monkeypatch.setattr(again, "MOST_FILES", 10**6)
    monkeypatch.setattr(again, "_MOST_BYTES", 400)
    assert not any(ask(root, "snapshot").again for _ in range(5))


@pytest.mark.parametrize("files", [3, 1100])
def test_much_data_is_looked_at_side_by_side_and_any_file_of_it_is_seen(tmp_path: Path, ask: Ask, files: int) -> None:
    root = _place(tmp_path, "nothing")
    for number in range(files):
        write(root, {f"data/{number:04d}.bin": "x", f"data/inner/{number % 40}/{number:04d}.bin": "x"})
    os.utime(root / "data", ns=(0, 0))
    settle(root)
    time.sleep(2.1)
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
    root = _place(tmp_path, "nothing")
    settle(root)
    time.sleep(2.1)
    right = ask(root, "snapshot").out
    note, before = repeat.note, again.before

    def swapped(home: str) -> dict[again.Witness, bytes]:
        seen = before(home)
        _swapped(root / "far")
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
    root = _place(tmp_path, "nothing")
    paths = [f"set-{number}" for number in range(70)]
    for path in paths:
        write(root, {f"{path}/a.bin": path, f"{path}/inner/b.bin": path})
    _other(root, settings=f"[data]\npaths = {paths}\n".replace("'", '"'))
    write(root, {".git/info/exclude": "/set-*\n/far*\nreqs\n"})
    settle(root)
    time.sleep(2.1)
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
        again.Search([str(tmp_path)])
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
    root, programs = _place(tmp_path / "top", "nothing"), tmp_path / "bin"
    programs.mkdir()
    (programs / "git").symlink_to(str(shutil.which("git")))
    if program:
        (programs / "find").write_text(f"#!/bin/sh\n{program}\n")
        (programs / "find").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    settle(root)
    time.sleep(2.1)
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
    root = _place(tmp_path, "nothing")
    monkeypatch.setattr(again, "_MOST_ROUNDS", 1)
    settle(root)
    time.sleep(2.1)
    assert not any(ask(root, "snapshot").again for _ in range(5))


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
    done = [
        subprocess.run([sys.executable, "-c", words], cwd=root, capture_output=True, text=True, check=False)
        for _ in range(4)
    ]
    assert {(answer.returncode, answer.stdout) for answer in done} == {(0, done[0].stdout)}
    argv = [sys.executable, "-m", "m5ws", "snapshot"]
    for _ in range(3):
        subprocess.run(argv, cwd=root, capture_output=True, check=True)
    with open("/dev/full", "w") as full:
        assert subprocess.run(argv, cwd=root, stdout=full, stderr=subprocess.DEVNULL, check=False).returncode == 2
    bare = {**os.environ, "PATH": "/nowhere"}
    done = [subprocess.run(argv, cwd=root, env=bare, capture_output=True, text=True, check=False)]
    assert (done[0].returncode, "Install git" in done[0].stderr) == (2, True)


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
