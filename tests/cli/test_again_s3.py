"""`m5ws snapshot` given again with a store in S3: curl asks what the server has, and what moved there is seen."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ceph import Ceph
from checkouts import git, write
from m5ws import again, inquiry, spawn
from m5ws.operations import repeat
from m5ws.repository import Repository
from m5ws.store.s3 import S3Store
from m5ws.store.s3_location import parse
from noted_answers import Ask
from s3_client import connect, fresh_bucket
from s3_servers import S3Server
from scripted_s3 import ScriptedS3
from settling import age, settle
from tests.conftest import loud_skip

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def _curl(s3_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        loud_skip("answers given again with a store in S3: curl is not installed (Debian: apt-get install curl)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Place:
    """A workspace with its store in a bucket, and the bucket as others see it."""

    def __init__(self, root: Path, url: str, options: str = "") -> None:
        self.root, self.store = root, S3Store(parse(url))
        bucket, endpoint = self.store.location.bucket, self.store.location.options.endpoint_url
        where = f'url = "s3://{bucket}/team"\nendpoint_url = "{endpoint}"\n{options}'
        write(root, {"m5ws.toml": f'[mlflow]\nenabled = false\n[data]\npaths = ["data"]\n[store]\n{where}'})
        write(root, {"train.py": "print(1)\n", ".gitignore": "data\n.m5ws\n", "data/a.bin": "a", "data/b.bin": "b"})
        git(root, "init", "-q", "-b", "main")
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", "first")
        age(root)

    def keys(self, prefix: str) -> list[str]:
        return [found.key for found in self.store.list(prefix)]


@pytest.fixture
def place(tmp_path: Path, s3_server: S3Server) -> Place:
    return Place(tmp_path / "w", s3_server.url(s3_server.bucket(), "team"))


def _noted(place: Place, ask: Ask, *, edited: bool = True) -> str:
    """Return the answer once it is given again; what was `edited` just now is not remembered."""
    if edited:
        settle(place.root)
    said = [ask(place.root, "snapshot")]
    while not said[-1].again and len(said) < 6:
        said.append(ask(place.root, "snapshot"))
    assert said[-1].again and len({answer.out for answer in said}) == 1
    return said[-1].out


def _note(place: Place) -> bytes:
    return (place.root / ".m5ws" / again.NAME).read_bytes()


def _replace(place: Place, key: str, change: Callable[[bytes], bytes]) -> None:
    content = place.store.get(key)
    place.store.delete(key)
    place.store.create(key, change(content))


def _cut(place: Place, prefix: str) -> None:
    for key in place.keys(prefix):
        _replace(place, key, lambda content: content[:-1])


def _deleted(place: Place, prefix: str) -> None:
    for key in place.keys(prefix):
        place.store.delete(key)


_CHANGES: dict[str, Callable[[Place], object]] = {
    "what is said of it is gone": lambda place: _deleted(place, "snapshots/"),
    "more is said of it": lambda place: place.store.create(
        f"{place.keys('snapshots/')[0].rpartition('/')[0]}/09999999999999-aaaaaaaa",
        place.store.get(place.keys("snapshots/")[0]),
    ),
    "a plan of gc": lambda place: place.store.create("gc/0123.plan", b"{}"),
    "a plan that was done": lambda place: place.store.create("gc/0123.done", b""),
    "all objects": lambda place: _deleted(place, "objects/"),
    "an edit": lambda place: write(place.root, {"train.py": "print(2)\n"}),
    "a file of data": lambda place: write(place.root, {"data/b.bin": "c"}),
}
_SAME: dict[str, Callable[[Place], object]] = {
    "nothing": repr,
    "an object of others": lambda place: place.store.create(f"objects/00/{'0' * 64}", b"others'"),
    "what is said of others": lambda place: place.store.create(f"snapshots/{'0' * 64}/0-a", b"others'"),
}


@pytest.mark.parametrize("many", [False, True], ids=["by one list", "object by object"])
def test_what_moved_in_the_store_is_seen(
    place: Place, ask: Ask, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, many: bool
) -> None:
    if many:
        # More than a server tells at once, by what curl is told to ask for.
        monkeypatch.setattr(inquiry, "MOST_LISTED", 5)
    first = _noted(place, ask)
    assert (b"\0each\n" in _note(place)) == many
    for name, change in _SAME.items():
        change(place)
        found = ask(place.root, "snapshot")
        assert (name, found.again, found.out) == (name, True, first)
    for name, change in _CHANGES.items():
        change(place)
        found = ask(place.root, "snapshot")
        whole = ask(place.root, "-C", ".", "snapshot")
        assert (name, found.again, found.out) == (name, False, whole.out)
        edited = name in ("an edit", "a file of data")
        assert (found.out == first) == (not edited)
        fresh = Repository.open(S3Store(place.store.location))
        assert fresh.objects.has(found.out.strip()) and place.keys(f"snapshots/{found.out.strip()}/")
        first = _noted(place, ask, edited=edited)


_DAMAGED: dict[str, Callable[[Place], object]] = {
    "the end of each object": lambda place: _cut(place, "objects/"),
    "the format, as long": lambda place: _replace(place, "format", lambda content: content[::-1]),
}


@pytest.mark.parametrize("damage", _DAMAGED)
def test_what_was_damaged_is_not_overlooked(
    place: Place, ask: Ask, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    _noted(place, ask)
    _DAMAGED[damage](place)
    # The whole command does not end well.
    with pytest.raises(AssertionError):
        ask(place.root, "snapshot")
    assert "error: " in capfd.readouterr().err


def test_what_came_and_went_while_it_was_asked_for_is_not_noted(
    place: Place, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is gone before a command and after it, and there while it works."""
    first = _noted(place, ask)
    (key,) = (key for key in place.keys("objects/") if first.strip() in key)
    content = place.store.get(key)
    (place.root / ".m5ws" / again.NAME).unlink()
    ask(place.root, "snapshot")
    before, note = again.before, repeat.note

    def come(*arguments: Any) -> dict[again.Witness, bytes]:
        place.store.delete(key)
        seen = before(*arguments)
        place.store.create(key, content)
        return seen

    def gone(*arguments: Any) -> None:
        place.store.delete(key)
        note(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(again, "before", come)
        patch.setattr(repeat, "note", gone)
        assert ask(place.root, "snapshot").out == first
    found = ask(place.root, "snapshot")
    assert (found.out, found.again) == (first, False)
    assert Repository.open(S3Store(place.store.location)).objects.has(first.strip())


def test_what_a_copy_on_this_machine_answered_is_asked_of_the_store(
    place: Place, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset that is pinned and not checked out is known by a tree that the cache holds."""
    pin = "outs:\n- md5: 5d41402abc4b2a76b9719d911017c592\n  path: known\n  hash: md5\n"
    write(place.root, {"known": "hello", "known.dvc": pin, ".gitignore": "data\n.m5ws\n/known\n"})
    git(place.root, "add", ".")
    git(place.root, "commit", "-q", "-m", "pinned")
    age(place.root)
    _noted(place, ask)
    (place.root / "known").unlink()
    _noted(place, ask)
    asked = _note(place)
    held = [path.name for path in (tmp_path / "cache" / "m5ws" / "objects").rglob("*") if path.is_file()]
    there = [key for key in place.keys("objects/") if key.rpartition("/")[2] in held]
    missing = [key for key in there if key.encode() not in asked]
    for key in missing:
        # What the note does not ask for, the whole command does not need.
        place.store.delete(key)
    shutil.rmtree(tmp_path / "cache" / "m5ws" / "objects")
    found, whole = ask(place.root, "snapshot"), ask(place.root, "-C", ".", "snapshot")
    assert found.again and found.out == whole.out


def test_another_s_server_is_not_asked(place: Place, ask: Ask, s3_server: S3Server) -> None:
    _noted(place, ask)
    settings = (place.root / "m5ws.toml").read_text()
    with ScriptedS3() as old:
        # A note from before, of a server that settings name no more, and other variables.
        note = again.Note.read(_note(place).split(b"\0", 2)[2])
        moved = {
            (kind, path.replace(s3_server.endpoint, old.endpoint)): text for (kind, path), text in note.seen.items()
        }
        assert moved.keys() != note.seen.keys()
        for asked in (note.asked, b"another"):
            content = again.Note(
                sure=True, asked=asked, told=note.told, out=note.out, err=note.err, seen=moved
            ).content()
            sealed = b"\0".join((again._FORM, again._digest([content]), content))
            (place.root / ".m5ws" / again.NAME).write_bytes(sealed)
            write(place.root, {"m5ws.toml": settings + ("\n" if asked == note.asked else "")})
            assert not ask(place.root, "snapshot").again
            assert not old.requests


def test_one_request_is_enough_and_the_secret_is_nowhere(
    place: Place, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    wrapper = tmp_path / "bin" / "curl"
    write(tmp_path, {"bin/curl": f'#!/bin/sh\necho "$@" >> {log}\nenv >> {log}\nexec {shutil.which("curl")} "$@"\n'})
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    _noted(place, ask)
    log.unlink()
    assert ask(place.root, "snapshot").again
    said = log.read_text()
    assert said.splitlines()[0] == "-q -K -" and said.count("-K -") == 1
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert secret not in said and secret.encode() not in _note(place)


_ELSEWHERE: dict[str, Callable[[Path], dict[str, str]]] = {
    "a profile": lambda _: {"AWS_PROFILE": "team"},
    "a proxy": lambda _: {"https_proxy": "http://127.0.0.1:1"},
    "a file of credentials": lambda path: {"AWS_SHARED_CREDENTIALS_FILE": str(path)},
}


@pytest.mark.parametrize("what", _ELSEWHERE)
def test_what_curl_would_not_know_of_is_asked_by_the_whole_command(
    tmp_path: Path, place: Place, ask: Ask, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    keys = "[{}]\naws_access_key_id = tester\naws_secret_access_key = not-a-secret\n"
    write(tmp_path, {"credentials": keys.format("default") + keys.format("team")})
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name, value in _ELSEWHERE[what](tmp_path / "credentials").items():
        monkeypatch.setenv(name, value)
    if what == "a proxy":
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    said = [ask(place.root, "snapshot") for _ in range(5)]
    assert len({answer.out for answer in said}) == 1 and not any(answer.again for answer in said)


def test_a_file_of_credentials_that_comes_later_counts(
    tmp_path: Path, place: Place, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "later"))
    _noted(place, ask)
    write(tmp_path, {"later": "[default]\nregion = eu-west-1\n"})
    assert not ask(place.root, "snapshot").again


@pytest.mark.parametrize("trouble", ["no curl", "one that fails", "one that says nothing", "one that hangs up"])
def test_without_a_clear_answer_the_whole_command_asks(
    place: Place, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    first = _noted(place, ask)
    script = {"one that fails": "exit 7", "one that says nothing": "exit 0", "one that hangs up": "printf x; kill $$"}
    found, spawned = spawn.found, tmp_path / "curl"
    spawned.write_text(f"#!/bin/sh\n{script.get(trouble, '')}\n")
    spawned.chmod(0o755)
    other = None if trouble == "no curl" else str(spawned)
    monkeypatch.setattr(spawn, "found", lambda name, *more: other if name == "curl" else found(name, *more))
    for _ in range(3):
        said = ask(place.root, "snapshot")
        assert (said.again, said.out) == (False, first)


def test_on_a_real_server_by_https(ceph: Ceph, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ceph.users["admin"]
    for name, value in (
        ("AWS_ACCESS_KEY_ID", keys.access_key),
        ("AWS_SECRET_ACCESS_KEY", keys.secret_key),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_CA_BUNDLE", ceph.authority),
    ):
        monkeypatch.setenv(name, value)
    bucket = fresh_bucket(connect(ceph.endpoint, keys))
    url = f"s3://{bucket}/team?endpoint_url={ceph.secure_endpoint}"
    place = Place(tmp_path / "w", url, 'integrity = "crc64nvme"\n')
    first = _noted(place, ask)
    monkeypatch.setattr(inquiry, "MOST_LISTED", 5)
    assert _noted(place, ask) == first and b"\0each\n" in _note(place)
    place.store.delete(next(key for key in place.keys("objects/") if first.strip() in key))
    found = ask(place.root, "snapshot")
    assert (found.again, found.out) == (False, first)
    assert Repository.open(place.store).objects.has(first.strip())


def test_nothing_is_imported_that_takes_long(place: Place, ask: Ask) -> None:
    words = "import sys, m5ws.__main__; sys.argv = ['m5ws', 'snapshot']; m5ws.__main__.main(); "
    names = {"click", "msgspec", "subprocess", "typing", "obstore", "botocore", "ssl", "re"}
    argv = [sys.executable, "-c", words + f"print({names} & {{*sys.modules}})"]
    done = [subprocess.run(argv, cwd=place.root, capture_output=True, text=True, check=True) for _ in range(5)]
    assert done[4].stdout.splitlines()[1] == "set()"
