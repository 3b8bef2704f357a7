"""Hostile references, ledgers, plans, formats, store directories and targets: refused, or skipped and reported.

As in test_hostile.py, every command has little memory, and nothing but its target may change.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.gc import Garbage, GcPlan, PlanPart, RetentionRules, Retirements
from m5ws.records.ledger import NODE, AttemptEnded, AttemptStarted, Step
from m5ws.records.snapshot import Annotation
from m5ws.records.store import Format
from m5ws.repository.references.checkpoints import name
from tests.support.faults.hostile import BATCH, RUN, World, first_batch, packed, plain
from tests.support.records import planted

PLAN = "20260101T000000Z-00000000"
_LABEL = name(1, 1)


def test_every_command_accepts_a_sound_store(world: World) -> None:
    snapshot = world.sound()
    assert world.damage() == []
    for arguments in (("show", snapshot), ("show", RUN), ("push", "--all", "--to", str(world.out / "pushed")), ("ls",)):
        world.fine(*arguments)


# --- references --------------------------------------------------------------------------------------------

JUNK: dict[str, bytes] = {
    "nothing": b"",
    "half a digest": b"ab" * 16,
    "capitals": b"AB" * 32,
    "two digests": (b"ab" * 32 + b"\n") * 2,
    "a way upwards": b"../../../../victim/canary\n",
    "other digits": ("\u0661" * 64).encode(),
    "zero bytes": bytes(64),
    "20 MB": b"ab" * 10**7,
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
def test_a_reference_without_a_valid_digest_is_refused(world: World, junk: bytes) -> None:
    world.sound()
    where = f"runs/{RUN}/checkpoints/{_LABEL}"
    world.place(where, junk)
    world.refused("show", RUN, saying=where, status=3)
    world.refused("push", RUN, "--to", str(world.out / "pushed"), saying=where, status=3)
    world.refused("gc", "--dry-run", saying=where, status=3)
    assert [damage["key"] for damage in world.damage()] == [where]
    world.place(where, f"{world.record(Observed())}\n".encode())
    world.refused("show", RUN, saying="checkpoint/1", status=3)


def test_a_pin_that_holds_no_digest_is_not_copied(world: World) -> None:
    world.sound()
    where = f"pins/{RUN}/{_LABEL}"
    world.place(where, b"secret")
    world.refused("push", RUN, "--to", str(world.out / "pushed"), saying=where, status=3)
    world.refused("gc", "--dry-run", saying=where, status=3)
    assert [damage["key"] for damage in world.damage()] == [where]


RUNS: dict[str, tuple[dict[str, object], str]] = {
    "another id": ({"id": "b" * 12}, "id is bbbbbbbbbbbb"),
    "an id upwards": ({"id": "../../../victim"}, "id"),
    "an absolute id": ({"id": "/etc"}, "id"),
    "an id of 1,000 letters": ({"id": "a" * 1000}, "id"),
    "a snapshot upwards": ({"snapshot": "../../../victim"}, "snapshot"),
    "a snapshot in capitals": ({"snapshot": "AB" * 32}, "snapshot"),
    "a replay of a way upwards": ({"reproduces": "../../victim"}, "reproduces"),
    "a time that is text": ({"created_s": "now"}, "created_s"),
    "a purpose of its own": ({"purpose": "mine"}, "purpose"),
}


@pytest.mark.parametrize(("fields", "saying"), RUNS.values(), ids=RUNS.keys())
def test_a_run_record_with_false_fields_is_refused(world: World, fields: dict[str, object], saying: str) -> None:
    world.sound()
    good = world.run(world.snapshot(world.tree()), "c" * 12)
    world.run("1" * 64, lies=fields)
    for arguments in (("show", RUN), ("push", RUN, "--to", str(world.out / "pushed")), ("gc", "--dry-run")):
        world.refused(*arguments, saying=saying, status=3)
    world.refused("resume", RUN, "--dry-run", saying=saying, status=3)
    assert RUN in world.fine("ls") and good in world.fine("show", good)


def test_push_of_circular_and_long_replay_chains_ends(world: World) -> None:
    snapshot = world.sound()
    world.run(snapshot, lies={"reproduces": RUN})
    world.run(snapshot, "b" * 12, {"reproduces": "c" * 12})
    world.run(snapshot, "c" * 12, {"reproduces": "b" * 12})
    for number in range(1500):
        world.run(snapshot, f"{number:012x}", {"reproduces": f"{number + 1:012x}" if number < 1499 else None})
    for run in (RUN, "b" * 12, f"{0:012x}"):
        world.fine("push", run, "--to", str(world.out / "pushed"), "--dry-run")


TIMES = (float("nan"), float("inf"), -1e300, 1e18)


def test_invalid_times_are_shown_without_an_error(world: World) -> None:
    snapshot = world.sound()
    for number, time_s in enumerate(TIMES):
        run = world.run(snapshot, f"{number:012x}", {"created_s": time_s})
        said = Annotation(key=f"snapshots/{snapshot}/{number}", created_s=time_s)
        world.place(f"snapshots/{snapshot}/{number}", codec.encode(said))
        world.fine("show", run)
    for arguments in (("ls",), ("ls", "--json"), ("show", snapshot), ("show", "--json", snapshot)):
        world.fine(*arguments)


NAMES: dict[str, bytes] = {
    "a space": b"a b",
    "not UTF-8": b"\xff\xfe",
    "an escape": b"\x1b[2J",
    "an option": b"-rf",
    "a superscript": "\u00b2".encode(),
    "other digits": "\u0661\u0662\u0663\u0664".encode(),
    "dots": b"...",
}


@pytest.mark.parametrize("foreign", NAMES.values(), ids=NAMES.keys())
def test_foreign_names_in_a_store_are_reported_and_hide_nothing(world: World, foreign: bytes) -> None:
    snapshot = world.sound()
    places = (
        "runs",
        f"runs/{RUN}/ledger",
        f"runs/{RUN}/ledger/0001",
        f"runs/{RUN}/checkpoints",
        "snapshots",
        "objects",
    )
    for place in (*places, "objects/ab", "gc"):
        folder = os.fsencode(world.store_dir / place) + b"/" + foreign
        os.makedirs(folder)
        Path(os.fsdecode(folder), "run").write_bytes(b"x")
    for arguments in (("ls",), ("ls", "--json"), ("show", snapshot), ("show", RUN), ("show", "--json", RUN)):
        world.fine(*arguments)
    world.fine("push", RUN, "--to", str(world.out / "pushed"))
    named = [damage["key"] for damage in world.damage()]
    assert len(named) >= 4


@pytest.mark.parametrize("text", ["../x", "runs/../x", f"{RUN}/../../victim", "/etc", "..", "%2e%2e", "a\0b", "\udcff"])
def test_an_unknown_name_on_the_command_line_is_refused_and_writes_nothing(world: World, text: str) -> None:
    world.sound()
    for verb in (("show",), ("checkout",), ("push", "--to", str(world.out / "pushed"))):
        rest = (str(world.out / "target"),) if verb == ("checkout",) else ()
        world.refused(*verb, "--", text, *rest, saying="snapshot", status=3)
    world.refused("gc", "--execute", text, saying="plan", status=3)
    assert list(world.out.iterdir()) == []


# --- ledgers -----------------------------------------------------------------------------------------------


def _attempt(**fields: object) -> dict[str, Any]:
    return plain(AttemptStarted(attempt=1, host="h")) | fields


EVENTS: dict[str, dict[str, Any]] = {
    "a checkpoint that is none": _attempt(resume="first-1"),
    "a checkpoint upwards": _attempt(resume="../../1-1"),
    "an heir upwards": _attempt(inherits=["../../victim"]),
    "an environment upwards": _attempt(observed="../../victim"),
    "a negative attempt": _attempt(attempt=-1),
    "a negative step": {"type": "checkpoint", "step": -1, "name": _LABEL, "checkpoint": "0" * 64, "content": "0" * 64},
    "a name upwards": {"type": "checkpoint", "step": 1, "name": "../..", "checkpoint": "0" * 64, "content": "0" * 64},
    "quantities in a list": {"type": "step", "step": 1, "quantities": [1]},
    "an outcome of its own": {"type": "attempt-ended", "outcome": "won", "exit_code": 0},
    "an unknown event": {"type": "hostile"},
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_a_false_event_is_refused_as_a_broken_chain(world: World, event: dict[str, Any]) -> None:
    world.sound()
    stored = packed(event)
    world.place(BATCH, codec.encode(first_batch({NODE: [stored]})))
    for arguments in (("show", RUN), ("push", RUN, "--to", str(world.out / "pushed")), ("gc", "--dry-run")):
        world.refused(*arguments, saying="ledger event", status=3)
    (damage,) = world.damage()
    assert damage["kind"] == "broken-chain"


LIES: dict[str, dict[str, object]] = {
    "another run": {"run": "b" * 12},
    "another attempt": {"attempt": 2},
    "another node": {"node": 7},
    "a node that is none": {"node": "../.."},
    "another number": {"seq": 7},
    "a number below zero": {"seq": -1},
    "another beginning": {"previous": "0" * 64},
    "another end": {"head": "0" * 64},
    "an end that is none": {"head": "../../victim"},
}


@pytest.mark.parametrize("lies", LIES.values(), ids=LIES.keys())
def test_a_false_batch_is_refused_as_a_broken_chain(world: World, lies: dict[str, object]) -> None:
    world.sound()
    world.batch(AttemptStarted(attempt=1, host="h"), lies=lies)
    for arguments in (("show", RUN), ("push", RUN, "--to", str(world.out / "pushed"))):
        world.refused(*arguments, saying=BATCH, status=3)
    assert [damage["kind"] for damage in world.damage()] == ["broken-chain"]


def test_invalid_numbers_are_shown_without_an_error(world: World) -> None:
    snapshot = world.sound()
    quantities = {"loss": "0xzz", "norm": "0x1p99999", "lr": "nan", "x": "-0x"}
    steps = (Step(time_s=time_s, step=1, quantities=quantities, seconds=5e-324, tokens=2**62) for time_s in TIMES)
    planted.append(world.repo, RUN, 1, "0", *steps)
    ended = AttemptEnded(time_s=float("inf"), outcome="finished", exit_code=0)
    planted.append(world.repo, RUN, 1, NODE, ended)
    for arguments in (("show", RUN), ("show", "--json", RUN), ("ls",), ("diff", RUN, snapshot)):
        world.fine(*arguments)


# --- plans of gc -------------------------------------------------------------------------------------------


def _plan(world: World, digests: bytes, **fields: object) -> None:
    sizes = bytes(len(digests) // 32 * 8)
    key = f"gc/{PLAN}/garbage/00000000"
    world.place(key, codec.encode(Garbage(key=key, digests=digests, sizes=sizes)))
    part = PlanPart(
        first=digests[:32].hex() or "0" * 64, last=digests[-32:].hex() or "f" * 64, objects=len(digests) // 32
    )
    key = f"gc/{PLAN}.plan"
    head = GcPlan(
        key=key,
        older_than_s=0.0,
        rules=RetentionRules(),
        checkpoints=0,
        references=0,
        objects=1,
        size_bytes=1,
        parts=(part,),
    )
    world.place(key, codec.sealed(packed(plain(head) | fields)))


def test_a_plan_that_lists_needed_objects_deletes_no_needed_object(world: World) -> None:
    world.sound()
    alive = sorted(stat.key for stat in world.repo.store.list("objects/"))
    _plan(world, b"".join(bytes.fromhex(where[-64:]) for where in alive))
    world.fine("gc", "--execute", PLAN, "--grace", "0s")
    assert sorted(stat.key for stat in world.repo.store.list("objects/")) == alive and world.damage() == []


PLANS: dict[str, tuple[Callable[[World], object], str]] = {
    "no plan": (lambda w: w.place(f"gc/{PLAN}.plan", b"delete all"), PLAN),
    "a rule below zero": (lambda w: _plan(w, b"", rules={"last": -5, "every": None}), "rules.last"),
    "a rule of nothing": (lambda w: _plan(w, b"", rules={"last": None, "every": 0}), "rules.every"),
    "less than no bytes": (lambda w: _plan(w, b"", size_bytes=-1), "size_bytes"),
    "parts that are not there": (lambda w: _plan(w, b"", parts=[plain_part()] * 3), "garbage/00000001"),
    "a digest and a half": (lambda w: _plan(w, b"x" * 48), "digests"),
    "references that are not there": (lambda w: _plan(w, b"", references=1), "retired/00000000"),
    "references upwards": (lambda w: _retire(w, {"run": "../..", "checkpoint": _LABEL, "digest": "0" * 64}), "run"),
    "a checkpoint upwards": (lambda w: _retire(w, {"run": RUN, "checkpoint": "../run", "digest": "0" * 64}), "check"),
    "a record upwards": (lambda w: _retire(w, {"run": RUN, "checkpoint": _LABEL, "digest": "../../x"}), "digest"),
}


def plain_part() -> dict[str, Any]:
    return {"first": "0" * 64, "last": "f" * 64, "objects": 0}


def _retire(world: World, reference: dict[str, str]) -> None:
    _plan(world, b"", references=1, checkpoints=1)
    key = f"gc/{PLAN}/retired/00000000"
    data = plain(Retirements(key=key, checkpoints=())) | {"checkpoints": [reference]}
    world.place(key, codec.sealed(packed(data)))


@pytest.mark.parametrize(("plant", "saying"), PLANS.values(), ids=PLANS.keys())
def test_a_false_plan_deletes_nothing(world: World, plant: Callable[[World], object], saying: str) -> None:
    world.sound()
    before = sorted(stat.key for stat in world.repo.store.list("objects/"))
    references = sorted(stat.key for stat in world.repo.store.list("runs/"))
    plant(world)
    world.refused("gc", "--execute", PLAN, "--grace", "0s", saying=saying, status=3)
    assert sorted(stat.key for stat in world.repo.store.list("objects/")) == before
    assert sorted(stat.key for stat in world.repo.store.list("runs/")) == references


# --- formats -----------------------------------------------------------------------------------------------

FORMATS: dict[str, object] = {
    "chunks of nothing": {"chunk_bytes": 0},
    "chunks below zero": {"chunk_bytes": -1},
    "chunks of 2**60": {"chunk_bytes": 2**60},
    "packs of nothing": {"pack_bytes": 0},
    "packs of 2**63": {"pack_bytes": 2**63},
    "small files below zero": {"small_bytes": -(2**40)},
    "half a byte": {"chunk_bytes": 0.5},
    "another hash": {"hash": "md5"},
    "no hash": {"hash": None},
    "another version": {"type": "format/9"},
    "a region in numbers": {"home_region": 1},
    "a field of its own": {"run": "rm -rf"},
}


@pytest.mark.parametrize("fields", FORMATS.values(), ids=FORMATS.keys())
def test_an_absurd_format_record_is_refused(world: World, fields: dict[str, object]) -> None:
    snapshot = world.sound()
    world.place("format", codec.sealed(packed(plain(Format()) | fields)))
    verbs = (("ls",), ("show", snapshot), ("fsck",), ("gc",), ("checkout", snapshot, str(world.out / "target")))
    for arguments in verbs:
        world.refused(*arguments, saying="format", status=3)
    assert list(world.out.iterdir()) == []
