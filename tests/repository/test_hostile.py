"""Hostile trees and records: each is refused with one clear error, or is harmless. Only the target is written.

Every command runs in a process with a GiB of memory (support/hostile.py), so a claimed size that is trusted fails.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.records import codec
from m5ws.records.ledger import Batch
from m5ws.records.tree import Entry, Slice, Tree
from m5ws.repository.ledger.ledger import start_of
from m5ws.repository.ledger.spool import chain
from m5ws.repository.references.checkpoints import name
from tests.support.faults.hostile import BATCH, RUN, World, packed, plain


def _refused_everywhere(world: World, tree: str, saying: str) -> None:
    """Publish a snapshot of a tree, and use it as a user does."""
    snapshot = world.snapshot(tree)
    world.refused("checkout", snapshot, str(world.out / "target"), saying=saying)
    world.refused("show", snapshot, saying=saying)
    world.refused("push", snapshot, "--to", str(world.out / "pushed"), saying=saying)
    world.refused("gc", "--dry-run", saying=saying)
    assert not (world.out / "target").exists() and not (world.out / "pushed" / "objects").exists()
    (damage,) = world.damage()
    assert damage["kind"] == "unreadable" and tree in damage["key"] and saying in damage["detail"]


_LONG = b"/".join([b"d" * 200] * 20)
PATHS = {
    "below a folder": b"a/..",
    "only upwards": b"..",
    "nothing": b"",
    "here": b".",
    "a zero byte": b"a\0b",
    "from here": b"./x",
    "here within": b"a/./b",
    "ends in a slash": b"a/",
    "two slashes": b"//x",
    "git's hooks": b".git/hooks/post-checkout",
    "git as a file": b".git",
    "git below": b"vendor/lib/.git/config",
    "git in capitals": b".GIT/config",
    "git's short name": b"git~1/config",
    "git and dots and spaces": b".git . ./config",
    "git's stream": b".git::$INDEX_ALLOCATION/config",
    "a stream of git": b".git:x",
    "git with a zero-width non-joiner": ".g\u200cit/config".encode(),
    "git after a mark": "\u200e.git/config".encode(),
    "git by backslashes": rb".git\hooks\post-checkout",
    "git below, by backslashes": rb"a\.GIT\config",
    "a workspace's own": b".m5ws/store/format",
    "a workspace's short name": b"m5ws~1/index",
    "a workspace with a long s": ".m5w\u017f/index".encode(),
    "a name of 256 bytes": b"n" * 256,
    "a path of 4,019 bytes and a name": _LONG + b"/" + b"n" * 77,
    "10,000 components": b"/".join([b"d"] * 10_000) + b"/x",
    "257 components": b"/".join([b"d"] * 257),
    "a megabyte of slashes": b"a/" * 500_000 + b"x",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_a_path_that_could_leave_the_target_is_refused(world: World, path: bytes) -> None:
    _refused_everywhere(world, world.tree(world.file(path)), "forbidden path")


def test_an_absolute_path_is_refused(world: World) -> None:
    tree = world.tree(world.file(bytes(world.victim / "new")), world.file(b"ok"))
    _refused_everywhere(world, tree, str(world.victim))


Make = Callable[[World], tuple[Entry, ...]]
CLASHES: dict[str, tuple[str, Make]] = {
    "a path twice": ("twice", lambda w: (w.file(b"a"), w.file(b"b"), w.file(b"a", b"other"))),
    "a file and a folder": ("both as", lambda w: (w.file(b"a"), w.file(b"a-b"), w.file(b"a/b"))),
    "a folder and then the file": ("both as", lambda w: (w.file(b"a/b/c/d"), w.file(b"a/b"))),
    "a file below a link": ("both as", lambda w: (w.link(b"d", bytes(w.victim)), w.file(b"d/new"))),
    "a link below a link": ("both as", lambda w: (w.link(b"d", bytes(w.victim)), w.link(b"d/new", b"x"))),
    "below a chain of links": ("both as", lambda w: (w.link(b"a", b"b"), w.link(b"b", b"../victim"), w.file(b"a/new"))),
}


@pytest.mark.parametrize(("saying", "make"), CLASHES.values(), ids=CLASHES.keys())
def test_paths_that_clash_are_refused(world: World, saying: str, make: Make) -> None:
    _refused_everywhere(world, world.tree(*make(world)), saying)


def test_parts_of_a_snapshot_with_clashing_paths_are_refused(world: World) -> None:
    code, config = world.tree(world.link(b"src", bytes(world.victim))), world.tree(world.file(b"src/new"))
    for number, snapshot in enumerate((world.snapshot(code, config), world.snapshot(config, config))):
        world.refused("checkout", snapshot, str(world.out / str(number)), saying=("both as", "twice")[number])


Change = Callable[[dict[str, Any]], object]


def _slice(**fields: object) -> Change:
    return lambda entry: entry["parts"][0].update(fields)


def _both(size: int) -> Change:
    return lambda entry: (entry.update(size_bytes=size), entry["parts"][0].update(size_bytes=size))


CLAIMS: dict[str, tuple[Change, str]] = {
    "10 GB with few bytes": (_both(10**10), "size_bytes"),
    "10 GB in one part": (_slice(size_bytes=10**10), "size_bytes"),
    "10 GB in the entry": (lambda e: e.update(size_bytes=10**10), "10000000000"),
    "10 GB in parts": (lambda e: e.update(size_bytes=10**10, parts=e["parts"] * 3), " 21 bytes"),
    "a negative size": (_both(-7), "size_bytes"),
    "a negative size of the entry": (lambda e: e.update(size_bytes=-1), "size_bytes"),
    "2**63 bytes": (_both(2**63), "size_bytes"),
    "2**64 - 1 bytes": (lambda e: e.update(size_bytes=2**64 - 1), "size_bytes"),
    "half a byte": (_both(6.5), "size_bytes"),  # type: ignore[arg-type]
    "a negative offset": (_slice(offset=-7), "offset"),
    "an offset of 2**63": (_slice(offset=2**63), "offset"),
    "an offset of 10**13": (_slice(offset=10**13), "offset"),
    "parts that do not sum up": (lambda e: e.update(parts=e["parts"] * 2), " 14 bytes"),
    "a part of nothing and no part": (lambda e: e.update(parts=[]), " 0 bytes"),
    "another file's digest": (lambda e: e.update(digest="0" * 64), "digest"),
    "a mode that is a device": (lambda e: e.update(mode="device"), "mode"),
    "a mode in bits": (lambda e: e.update(mode=0o104755), "mode"),
    "a file with a link's target": (lambda e: e.update(link=b"/etc/passwd"), "both a link"),
    "a link with parts": (lambda e: e.update(mode="link", link=b"1234567"), "both a link"),
    "a link without a target": (lambda e: e.update(mode="link", parts=[]), "both a link"),
    "a link to nowhere": (lambda e: e.update(mode="link", parts=[], link=b"", size_bytes=0), "target"),
    "a link with a zero byte": (lambda e: e.update(mode="link", parts=[], link=b"/\0b-456"), "target"),
    "a link of 5,000 bytes": (lambda e: e.update(mode="link", parts=[], link=b"x" * 5000, size_bytes=5000), "target"),
    "a link of another digest": (lambda e: e.update(mode="link", parts=[], link=b"1234567", digest="0" * 64), "digest"),
    "a link of another size": (lambda e: e.update(mode="link", parts=[], link=b"x"), "target"),
    "an object upwards": (_slice(object="../../../victim/canary"), "object"),
    "an absolute object": (_slice(object="/etc/passwd"), "object"),
    "an object in capitals": (lambda e: _slice(object=e["parts"][0]["object"].upper())(e), "object"),
    "an object and a line's end": (lambda e: _slice(object=e["parts"][0]["object"] + "\n")(e), "object"),
    "an object that is a number": (_slice(object=7), "object"),
    "an object in another alphabet": (_slice(object="\u0661" * 64), "object"),
    "a path that is text": (lambda e: e.update(path="ünï"), "path"),
    "no path": (lambda e: e.pop("path"), "path"),
    "a field of its own": (lambda e: e.update(owner="root"), "owner"),
}


@pytest.mark.parametrize(("change", "saying"), CLAIMS.values(), ids=CLAIMS.keys())
def test_a_false_tree_entry_is_refused(world: World, change: Change, saying: str) -> None:
    entry = plain_entry(world.file(b"a"))
    change(entry)
    _refused_everywhere(world, world.put(packed({"type": "tree/3", "entries": [entry]})), saying)


def plain_entry(entry: Entry) -> dict[str, Any]:
    return dict(plain(Tree(entries=(entry,)))["entries"][0])


PIECES: dict[str, Change] = {
    "past its object's end": _slice(offset=1, digest="1" * 64),
    "4 GB of a small object": lambda e: (_both(4 * 10**9)(e), _slice(digest="1" * 64)(e)),
    "4 GB that is all of an object": _both(4 * 10**9),
    "of an object that is not there": _slice(object="2" * 64, digest="2" * 64),
    "with another digest": _slice(digest="3" * 64),
    "far behind its object's end": _slice(offset=4 * 10**9, digest="4" * 64),
}


@pytest.mark.parametrize("change", PIECES.values(), ids=PIECES.keys())
def test_a_missing_part_of_a_file_is_an_error_and_uses_no_memory(world: World, change: Change) -> None:
    entry = plain_entry(world.file(b"a"))
    change(entry)
    entry["digest"] = entry["parts"][0]["digest"]
    snapshot = world.snapshot(world.put(packed({"type": "tree/3", "entries": [entry]})))
    lied = entry["parts"][0]["object"]
    world.refused("checkout", snapshot, str(world.out / "target"), saying=lied, status=3)
    written = world.out / "target" / "a"
    assert not written.exists() or written.stat().st_size == 0
    (damage,) = world.damage()
    assert lied in damage["key"] and damage["kind"] in ("truncated", "missing", "corrupt")
    if damage["kind"] != "corrupt":
        world.refused("push", snapshot, "--to", str(world.out / "pushed"), saying=lied, status=3)
        assert not (world.out / "pushed" / "snapshots").exists()


HARMLESS: dict[str, Make] = {
    "backslashes": lambda w: (w.file(rb"..\..\victim\new"), w.file(rb"C:\windows\x")),
    "case": lambda w: (w.file(b"README", b"1"), w.file(b"readme", b"2"), w.file(b"Readme/x", b"3")),
    "composed and decomposed": lambda w: (w.file("caf\u00e9".encode(), b"1"), w.file("cafe\u0301".encode(), b"2")),
    "not UTF-8": lambda w: (w.file(b"\xff\xfe"), w.file(b"\x1b[2J\n\r\x07")),
    "options and quotes": lambda w: (w.file(b"-rf"), w.file(b"$(touch new)"), w.file(b"'\"; touch new #")),
    "an absolute link": lambda w: (w.link(b"d", bytes(w.victim)), w.file(b"e")),
    "a link upwards": lambda w: (w.link(b"a/d", b"../../../victim/canary"), w.file(b"a/e")),
    "a chain of links": lambda w: (w.link(b"a", b"b"), w.link(b"b", b"c"), w.link(b"c", bytes(w.victim / "new"))),
    "a ring of links": lambda w: (w.link(b"a", b"b"), w.link(b"b", b"a"), w.link(b"c", b"c/c")),
    "a link to a device": lambda w: (w.link(b"zero", b"/dev/zero"), w.link(b"tty", b"/dev/tty")),
    "no order": lambda w: (w.file(b"z"), w.file(b"a/b"), w.file(b"m"), w.file(b"a/a")),
    "a name like git": lambda w: (w.file(b".gitignore"), w.file(b"a.git"), w.file(b".git2/x"), w.file(b"...")),
    "256 components": lambda w: (w.file(b"/".join([b"d"] * 256)),),
    "a name of 255 bytes": lambda w: (w.file(b"n" * 255),),
}


@pytest.mark.parametrize("make", HARMLESS.values(), ids=HARMLESS.keys())
def test_strange_but_valid_entries_are_written_unchanged(world: World, make: Make) -> None:
    entries = make(world)
    snapshot = world.snapshot(world.tree(*entries))
    target = world.out / "target"
    world.fine("checkout", snapshot, str(target))
    for entry in entries:
        path = Path(bytes(target).decode() + "/" + entry.path.decode("utf-8", "surrogateescape"))
        if entry.link is not None:
            assert path.is_symlink() and bytes(path.readlink()) == entry.link
        else:
            assert path.read_bytes() == world.repo.objects.get(entry.parts[0].object)
    assert sum(not path.is_dir() or path.is_symlink() for path in target.rglob("*")) == len(entries)
    world.fine("show", snapshot)
    world.fine("push", snapshot, "--to", str(world.out / "pushed"))
    assert world.damage() == []


def test_overlapping_parts_of_an_object_are_read_correctly(world: World) -> None:
    data = b"0123456789"
    digest = world.put(data)
    parts = [
        Slice(object=digest, offset=at, size_bytes=6, digest=world.repo.objects.digest(data[at:][:6])) for at in (0, 3)
    ]
    joined = world.repo.objects.digest("".join(part.digest for part in parts).encode())
    snapshot = world.snapshot(
        world.tree(Entry(path=b"a", mode="file", size_bytes=12, digest=joined, parts=tuple(parts)))
    )
    world.fine("checkout", snapshot, str(world.out / "target"))
    assert (world.out / "target" / "a").read_bytes() == b"012345345678"


# --- bytes that are not records -------------------------------------------------------------------------


def _head(tag: str, field: str) -> bytes:
    return b"\x82" + packed("type") + packed(tag) + packed(field)


class _Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("/tmp/m5ws-hostile-pickle"),))


BOMBS: dict[str, Callable[[str, str], bytes]] = {
    "nothing": lambda tag, field: b"",
    "text": lambda tag, field: b'{"type": "' + tag.encode() + b'"}',
    "a number": lambda tag, field: b"\x07",
    "an opcode that is none": lambda tag, field: _head(tag, field) + b"\xc1",
    "cut off": _head,
    "trailing bytes": lambda tag, field: packed({"type": tag}) + b"x",
    "a pickle": lambda tag, field: pickle.dumps(_Bomb()),
    "an array of 2**32 - 1": lambda tag, field: _head(tag, field) + b"\xdd\xff\xff\xff\xff",
    "a map of 2**32 - 1": lambda tag, field: b"\xdf\xff\xff\xff\xff" + packed("type") + packed(tag),
    "bytes of 4 GB": lambda tag, field: _head(tag, field) + b"\xc6\xff\xff\xff\xff",
    "text of 4 GB": lambda tag, field: _head(tag, field) + b"\xdb\xff\xff\xff\xff",
    "an extension of 4 GB": lambda tag, field: _head(tag, field) + b"\xc9\xff\xff\xff\xff\x05",
    "an extension": lambda tag, field: _head(tag, field) + b"\xd4\x05\x00",
    "100,000 arrays in each other": lambda tag, field: _head(tag, field) + b"\x91" * 100_000 + b"\xc0",
    "100,000 maps in each other": lambda tag, field: _head(tag, field) + b"\x81\xa1a" * 100_000 + b"\xc0",
    "100,000 arrays before the type": lambda tag, field: (
        b"\x82" + packed("x") + b"\x91" * 100_000 + b"\xc0" + packed("type") + packed(tag)
    ),
    "arrays that all claim the rest": lambda tag, field: (
        _head(tag, field) + b"".join(b"\xdd" + (10**6).to_bytes(4) for _ in range(500)) + bytes(10**6)
    ),
    "a name that is not UTF-8": lambda tag, field: b"\x81\xa4\xff\xfe\xfd\xfc\xc0",
    "a type that is not UTF-8": lambda tag, field: b"\x81" + packed("type") + b"\xa2\xff\xfe",
    "a number for a name": lambda tag, field: b"\x81\x01\x02",
    "an unknown type": lambda tag, field: packed({"type": "hostile/1", field: []}),
    "a later version": lambda tag, field: packed({"type": tag[:-1] + "9"}),
    "no type": lambda tag, field: packed({field: []}),
    "a type alone": lambda tag, field: packed({"type": tag}),
    "an unknown field": lambda tag, field: packed({"type": tag, "x": 1}),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_bytes_that_are_no_tree_are_refused(world: World, bomb: Callable[[str, str], bytes]) -> None:
    tree = world.put(bomb("tree/3", "entries"))
    _refused_everywhere(world, tree, tree)


# One codec decodes all records: each of its refusals is tested by a tree.
_FEW = dict(list(BOMBS.items())[::4])


@pytest.mark.parametrize("bomb", _FEW.values(), ids=_FEW.keys())
def test_bytes_that_are_no_snapshot_run_or_annotation_are_refused(
    world: World, bomb: Callable[[str, str], bytes]
) -> None:
    snapshot = world.publish(world.put(bomb("snapshot/1", "datasets")))
    world.refused("show", snapshot, saying=snapshot, status=3)
    world.refused("checkout", snapshot, str(world.out / "target"), saying=snapshot, status=3)
    world.place(f"runs/{RUN}/run", codec.sealed(bomb("run/1", "spec")))
    world.refused("show", RUN, saying=f"runs/{RUN}/run", status=3)
    said = world.snapshot(world.tree())
    world.place(f"snapshots/{said}/00000000002000-00000000", codec.sealed(bomb("annotation/1", "notes")))
    world.refused("show", said, saying=f"snapshots/{said}/", status=3)
    world.refused("gc", "--dry-run", saying="", status=3)
    world.fine("ls")
    named = " ".join(damage["key"] for damage in world.damage())
    assert snapshot in named and RUN in named and said in named


@pytest.mark.parametrize("bomb", _FEW.values(), ids=_FEW.keys())
def test_bytes_that_are_no_ledger_or_checkpoint_are_refused(world: World, bomb: Callable[[str, str], bytes]) -> None:
    run = world.run(world.snapshot(world.tree()))
    checkpoint = world.put(bomb("checkpoint/1", "ledger"))
    world.place(f"runs/{run}/checkpoints/{name(1, 1)}", f"{checkpoint}\n".encode())
    world.refused("push", run, "--to", str(world.out / "pushed"), saying=checkpoint, status=3)
    (damage,) = world.damage()
    assert checkpoint in damage["key"]
    batch = world.place(BATCH, bomb("ledger/1", "events"))
    world.refused("show", run, saying=BATCH, status=3)
    batch.unlink()
    _ledger(world, bomb("step", "quantities"))
    world.refused("show", run, saying="ledger", status=3)


def _ledger(world: World, event: bytes) -> None:
    """Publish a batch of one event of the node, with a valid chain."""
    # Without msgspec, which cannot write invalid msgpack as an event.
    events, previous = b"\x81\xa4node\x91" + event, start_of(RUN, 1, 0)
    head = chain(previous, events)
    batch = Batch(run=RUN, attempt=1, node=0, seq=0, previous=previous, head=head, events=msgspec.Raw(b"\xc0"))
    world.place(BATCH, codec.encode(batch).replace(b"\xa6events\xc0", b"\xa6events" + events))
