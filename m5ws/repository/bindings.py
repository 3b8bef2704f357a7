"""What is read by key, held against that key: a record counts only under the key that it was written under.

The table in docs/format.md, section "Bindings", lists every kind of reference with what must match; this is the one
module that checks it, and every reader of a reference goes through it. A record that lies under another's key raises
Misplaced. Only `record`, `line` and `checkpoint` ask the store, for what is read anyway.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from m5ws.errors import CorruptObject, Misplaced
from m5ws.records import codec
from m5ws.records.base import Digest, Placed, Record
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.gc import Done, Executing, Garbage, GcPlan, Keep, PlanPart, Retirements
from m5ws.records.ledger import Batch, CheckpointPublished, OutputsStored
from m5ws.records.outputs import ANY_OUTPUTS, OutputFiles
from m5ws.records.run import Run
from m5ws.records.snapshot import Annotation
from m5ws.records.store import Format
from m5ws.records.verdict import JointVerdict, Verdict
from m5ws.store.interface import ObjectStore

if TYPE_CHECKING:
    from m5ws.repository.objects import Objects

P = TypeVar("P", bound=Placed)

DIGEST_BYTES = 32
"""Bytes of a digest where many are joined."""

KEYS: tuple[tuple[str, type[Record], Mapping[str, str]], ...] = (
    ("format", Format, {}),
    ("snapshots/<id>/<time>-<nonce>", Annotation, {}),
    ("runs/<run>/run", Run, {"run": "id"}),
    ("runs/<run>/ledger/<attempt>/<rank>/<seq>", Batch, {}),
    ("runs/<run>/checkpoints/<step>-<attempt>", Checkpoint, {}),
    ("runs/<run>/outputs/<attempt>-<moment>", OutputFiles, {}),
    ("runs/<run>/verdict", Verdict, {"run": "replay"}),
    ("runs/<run>/joint/<time>-<nonce>", JointVerdict, {}),
    ("pins/<run>/<step>-<attempt>", Checkpoint, {}),
    ("gc/<plan>.plan", GcPlan, {}),
    ("gc/<plan>/garbage/<n>", Garbage, {}),
    ("gc/<plan>/retired/<n>", Retirements, {}),
    ("gc/<plan>/keep/<nonce>", Keep, {}),
    ("gc/<plan>.executing", Executing, {}),
    ("gc/<plan>.done", Done, {}),
)
"""Forms of keys, the record under each, and which of its fields a part of the key is where the two have other names."""
_OLDER: tuple[tuple[str, type[Record], Mapping[str, str]], ...] = (
    ("runs/<run>/outputs/<attempt>-<number>", Checkpoint, {"number": "step"}),
)
"""As `KEYS`, of records that older builds wrote."""


# --- against the key -------------------------------------------------------------------------------


def record(store: ObjectStore, key: str, kind: type[codec.R]) -> codec.R:
    """Return the record under a key. Raises NotFound, UnknownSchema, CorruptObject, Misplaced."""
    found = codec.decode(store.get(key), kind, key)
    check(key, found)
    return found


def create(store: ObjectStore, key: str, placed: P) -> P:
    """Create a record under a key, which it names from then on; return it so. Raises ObjectExists."""
    placed = msgspec.structs.replace(placed, key=key)
    store.create(key, codec.encode(placed))
    return placed


def line(store: ObjectStore, key: str) -> Digest:
    """Return the digest in a reference that is one line. Raises NotFound, CorruptObject."""
    data = store.get(key)
    text = data[:-1].decode("ascii", "replace")
    if not re.fullmatch(r"[0-9a-f]{64}", text) or data[-1:] != b"\n":
        raise CorruptObject(f"{key} does not hold a digest")
    return text


def checkpoint(objects: "Objects", key: str) -> tuple[Digest, Checkpoint]:
    """Return the digest and the record that a line under a key names. Raises NotFound, CorruptObject, Misplaced."""
    digest = line(objects.store, key)
    return digest, named(objects, key, digest)


def files(objects: "Objects", key: str) -> tuple[Digest, OutputFiles]:
    """Return as `checkpoint`, of output files; one of an older build's is a `Checkpoint`, with the same fields."""
    digest = line(objects.store, key)
    found = objects.get_record(digest, ANY_OUTPUTS)
    check(key, found)
    return digest, found


def named(objects: "Objects", key: str, digest: Digest, by: str = "") -> Checkpoint:
    """Return the record that the line under a key is known to name, or that another record, `by`, names as it.

    Raises as `checkpoint`.
    """
    found = objects.get_record(digest, Checkpoint)
    check(key, found, by)
    return found


def check(key: str, found: object, by: str = "") -> None:
    """Raise Misplaced unless a record, or the one that a line names, belongs under `key`; `by` as in `named`."""
    if differing := ", ".join(_differing(key, found)):
        holds = f"{by} names as {key}" if by and by != key else f"{key} holds"
        raise Misplaced(f"{holds} the record of another key: {differing}")


def _differing(key: str, found: object) -> Iterator[str]:
    """Yield the fields of a record that do not match a key, with their values."""
    if isinstance(found, Placed) and found.key is not None:
        if found.key != key:
            yield f"its key is {found.key}"
        return
    parts = _parts(key, type(found))
    if parts is None:
        yield f"no {type(found).__name__} has such a name"
    for field, text in (parts or {}).items():
        if field == "time":
            if not _is_time(text, found):
                yield "its time is another"
        elif (value := getattr(found, field, text)) != text and not (_is_number(text) and value == int(text)):
            yield f"its {field} is {value}"


def _parts(key: str, kind: type) -> dict[str, str] | None:
    """Return the parts of a key by the field that each is; None if no key of that kind of record has this form."""
    for pattern, of, fields in (*KEYS, *_OLDER):
        if of is kind and (match := _compiled(pattern).fullmatch(key)):
            return {fields.get(name, name): text for name, text in match.groupdict().items()}
    return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", pattern.replace(".", r"\.")))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_time(text: str, found: object) -> bool:
    """Return True if `text` is when a record was made, in milliseconds, as its key has it."""
    created_s = getattr(found, "created_s", 0.0)
    return _is_number(text) and abs(created_s) < float("inf") and int(created_s * 1000) == int(text)


# --- against other records -------------------------------------------------------------------------


def check_verdict(verdict: Verdict, replay: Run) -> None:
    """Raise Misplaced unless a verdict is on the run that its replay reproduces."""
    if verdict.run != replay.reproduces:
        of = f"run {replay.reproduces}" if replay.reproduces else "no run"
        raise Misplaced(f"runs/{replay.id}/verdict is on run {verdict.run}, and its run reproduces {of}")


def check_event(label: str, digest: Digest, found: Checkpoint, event: CheckpointPublished | None) -> None:
    """Raise Misplaced unless a checkpoint is the one that its ledger recorded; None: the ledger records none."""
    if event is None:
        return
    # Older builds gave output files the label of the step after the last, and the event the last step.
    step = found.step if event.outputs else event.step
    if (event.checkpoint, event.content, step) == (digest, found.content, found.step):
        return
    raise Misplaced(
        f"checkpoint {label} was exchanged after it was published: its record is {digest[:12]} with content "
        f"{found.content[:12]}, and the ledger recorded {event.checkpoint[:12]} with content {event.content[:12]}"
    )


def check_outputs(where: str, digest: Digest, found: OutputFiles, event: OutputsStored) -> None:
    """Raise Misplaced unless output files are those that the ledger recorded."""
    if (event.record, event.content) != (digest, found.content):
        raise Misplaced(
            f"{where} was exchanged after it was published: its record is {digest[:12]} with content "
            f"{found.content[:12]}, and the ledger recorded {event.record[:12]} with content {event.content[:12]}"
        )


def check_annotation(key: str, annotation: Annotation, trees: tuple[Digest, ...]) -> None:
    """Raise Misplaced for an annotation with packings of other trees than those of its snapshot."""
    if foreign := annotation.packings.keys() - set(trees):
        raise Misplaced(f"{key} names a packing of tree {min(foreign)}, which is no tree of the snapshot")


def part_of(key: str, garbage: Garbage) -> PlanPart | None:
    """Return how a plan's head names a part, or None for an empty one. Raises CorruptObject for half a digest."""
    digests = garbage.digests
    if len(digests) % DIGEST_BYTES or len(garbage.sizes) * DIGEST_BYTES != len(digests) * 8:
        raise CorruptObject(f"{key} has digests and sizes that do not belong together")
    if not digests:
        return None
    first, last = digests[:DIGEST_BYTES].hex(), digests[-DIGEST_BYTES:].hex()
    return PlanPart(first=first, last=last, objects=len(digests) // DIGEST_BYTES)


def check_part(key: str, part: PlanPart | None, head: GcPlan) -> None:
    """Raise Misplaced unless a plan's head names a part, under its number, as it is."""
    number = key.rpartition("/")[2]
    if part is not None and (not _is_number(number) or part not in head.parts[int(number) :][:1]):
        raise Misplaced(f"{key} is not the part of the plan that its head names")
