"""Checks of records against their keys: a record is only valid under the key that it was written under.

The table in docs/format.md, section "Bindings", lists every kind of reference and its checks. This is the only module
that performs them, and every reader of a reference uses it. A record under another record's key raises Misplaced. Only
`record`, `find`, `records`, `line`, `files` and `load_checkpoint` read from the store, and only data that the caller
needs anyway.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeVar

import msgspec

from m5ws.errors import CorruptObject, Misplaced, NotFound
from m5ws.records import codec
from m5ws.records.base import Digest, KeyedRecord, Record
from m5ws.records.canary import Canary
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.gc import Garbage, GcExecution, GcPlan, GcResult, Keep, PlanPart, Retirements
from m5ws.records.incident import Incident
from m5ws.records.job import Cancel, Job
from m5ws.records.known import Known
from m5ws.records.ledger import Batch, CheckpointPublished, OutputsStored
from m5ws.records.log import LogPart
from m5ws.records.note import Note
from m5ws.records.outputs import OutputFiles
from m5ws.records.removal import Removal
from m5ws.records.run import Run
from m5ws.records.sample_counts import SampleCounts
from m5ws.records.snapshot import Annotation
from m5ws.records.store import Format
from m5ws.records.summary import AttemptSummary
from m5ws.records.verdict import JointVerdict, Verdict
from m5ws.repository.concurrency import for_each
from m5ws.repository.objects import Objects, is_digest
from m5ws.store.interface import ObjectStore

P = TypeVar("P", bound=KeyedRecord)

DIGEST_BYTES = 32
"""Size of a digest in a concatenation of digests."""

KEYS: tuple[tuple[str, type[Record], Mapping[str, str]], ...] = (
    ("format", Format, {}),
    ("snapshots/<id>/<time>-<nonce>", Annotation, {}),
    ("runs/<run>/run", Run, {"run": "id"}),
    ("runs/<run>/ledger/<attempt>/<node>/<seq>", Batch, {}),
    ("runs/<run>/checkpoints/<step>-<attempt>", Checkpoint, {}),
    ("runs/<run>/outputs/<attempt>-<node>-<moment>", OutputFiles, {}),
    ("runs/<run>/summaries/<attempt>-<batches>", AttemptSummary, {}),
    ("runs/<run>/verdict", Verdict, {"run": "replay"}),
    ("runs/<run>/joint/<time>-<nonce>", JointVerdict, {}),
    ("notes/<run>/<time>-<nonce>", Note, {}),
    ("jobs/<run>/<name>", Job, {}),
    ("cancels/<run>/<time>-<nonce>", Cancel, {}),
    ("canaries/<snapshot>/<kind>/<time>-<nonce>", Canary, {}),
    ("known/<kind>/<time>-<tag>", Known, {}),
    ("samples/<dataset>/<reading>-<part>", SampleCounts, {}),
    ("logs/<run>/<attempt>-<node>-<number>", LogPart, {}),
    ("incidents/<run>/<attempt>", Incident, {}),
    ("pins/<run>/<step>-<attempt>", Checkpoint, {}),
    ("removed/<run>", Removal, {}),
    ("gc/<plan>.plan", GcPlan, {}),
    ("gc/<plan>/garbage/<n>", Garbage, {}),
    ("gc/<plan>/retired/<n>", Retirements, {}),
    ("gc/<plan>/keep/<nonce>", Keep, {}),
    ("gc/<plan>.executing", GcExecution, {}),
    ("gc/<plan>.done", GcResult, {}),
)
"""Patterns of keys, the record under each, and the fields in the key whose record fields have other names."""


# --- against the key -------------------------------------------------------------------------------


def record(store: ObjectStore, key: str, kind: type[codec.R]) -> codec.R:
    """Return the record under a key. Raises NotFound, UnknownSchema, CorruptObject, Misplaced."""
    loaded = codec.decode(store.get(key), kind, key)
    check(key, loaded)
    return loaded


def find(store: ObjectStore, key: str, kind: type[codec.R]) -> codec.R | None:
    """Return the record under a key, or None. Raises UnknownSchema, CorruptObject, Misplaced."""
    try:
        return record(store, key, kind)
    except NotFound:
        return None


def records(store: ObjectStore, prefix: str, kind: type[codec.R]) -> dict[str, codec.R]:
    """Return the records below a prefix by their keys, in order of the keys. Raises as `record`."""
    keys = [stat.key for stat in store.list(prefix)]
    return dict(zip(keys, for_each(lambda key: record(store, key, kind), keys), strict=True))


def create(store: ObjectStore, key: str, placed: P) -> P:
    """Create a record under a key, with the key in the record; return the record. Raises ObjectExists."""
    placed = msgspec.structs.replace(placed, key=key)
    store.create(key, codec.encode(placed))
    return placed


def create_at(store: ObjectStore, prefix: str, time_s: float, placed: P) -> P:
    """Create a record under a new key below a prefix, `<time>-<nonce>`; otherwise as `create`."""
    return create(store, f"{prefix}{int(time_s * 1000):014d}-{os.urandom(4).hex()}", placed)


def line(store: ObjectStore, key: str) -> Digest:
    """Return the digest in a one-line reference. Raises NotFound, CorruptObject."""
    data = store.get(key)
    text = data[:-1].decode("ascii", "replace")
    if not is_digest(text) or data[-1:] != b"\n":
        raise CorruptObject(f"{key} does not contain a digest")
    return text


def files(objects: Objects, key: str) -> tuple[Digest, OutputFiles]:
    """Return the digest in the line under a key, and the output files of that digest.

    Raises NotFound, CorruptObject, Misplaced.
    """
    digest = line(objects.store, key)
    loaded = objects.get_record(digest, OutputFiles)
    check(key, loaded)
    return digest, loaded


def load_checkpoint(objects: Objects, key: str, digest: Digest, by: str = "") -> Checkpoint:
    """Return the record whose digest is in the line under a key, or in another record, `by`.

    Raises as `files`.
    """
    loaded = objects.get_record(digest, Checkpoint)
    check(key, loaded, by)
    return loaded


def check(key: str, value: object, by: str = "") -> None:
    """Raise Misplaced unless a record belongs under `key`, or a line names it there. `by`: see `load_checkpoint`."""
    if differing := ", ".join(_differing(key, value)):
        owner = f"{by} names as {key}" if by and by != key else f"{key} contains"
        raise Misplaced(f"{owner} the record of another key: {differing}")


def _differing(key: str, value: object) -> Iterator[str]:
    """Yield the fields of a record that differ from its key, with their values."""
    if isinstance(value, KeyedRecord):
        if value.key != key:
            yield f"its key is {value.key}"
        return
    parts = _parts(key, type(value))
    if parts is None:
        yield f"no {type(value).__name__} has such a key"
    for field, text in (parts or {}).items():
        if (content := getattr(value, field, text)) != text and not (is_number(text) and content == int(text)):
            yield f"its {field} is {content}"


def _parts(key: str, kind: type) -> dict[str, str] | None:
    """Return the parts of a key by field; None if the kind of record has no key of this form."""
    for pattern, of, fields in KEYS:
        if of is kind and (match := _compiled(pattern).fullmatch(key)):
            return {fields.get(name, name): text for name, text in match.groupdict().items()}
    return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", pattern.replace(".", r"\.")))


def is_number(text: str) -> bool:
    """Return True if a part of a key is a number. `str.isdigit` alone accepts digits that `int` does not."""
    return text.isascii() and text.isdigit()


# --- against other records -------------------------------------------------------------------------


def check_verdict(verdict: Verdict, replay: Run) -> None:
    """Raise Misplaced unless a verdict is about the run that its replay reproduces."""
    if verdict.run != replay.reproduces:
        of = f"run {replay.reproduces}" if replay.reproduces else "no run"
        raise Misplaced(f"runs/{replay.id}/verdict is about run {verdict.run}, but its replay reproduces {of}")


def check_event(
    where: str, digest: Digest, record: Checkpoint | OutputFiles, event: CheckpointPublished | OutputsStored
) -> None:
    """Raise Misplaced unless a checkpoint or output files match their event in the ledger."""
    recorded, step = (event.record, None) if isinstance(event, OutputsStored) else (event.checkpoint, event.step)
    own_step = record.step if isinstance(record, Checkpoint) else None
    if (recorded, event.content, step) != (digest, record.content, own_step):
        raise Misplaced(
            f"{where} was modified after publication: its record is {digest[:12]} with content "
            f"{record.content[:12]}, but the ledger has {recorded[:12]} with content {event.content[:12]}"
        )


def part_of(key: str, garbage: Garbage) -> PlanPart | None:
    """Return a part as it appears in a plan's head, or None if it is empty. Raises CorruptObject if it is malformed."""
    digests = garbage.digests
    if len(digests) % DIGEST_BYTES or len(garbage.sizes) * DIGEST_BYTES != len(digests) * 8:
        raise CorruptObject(f"{key} has digests and sizes of different counts")
    if not digests:
        return None
    first, last = digests[:DIGEST_BYTES].hex(), digests[-DIGEST_BYTES:].hex()
    return PlanPart(first=first, last=last, objects=len(digests) // DIGEST_BYTES)


def check_part(key: str, part: PlanPart | None, head: GcPlan) -> None:
    """Raise Misplaced unless the part, under its number, matches the plan's head."""
    number = key.rpartition("/")[2]
    if part is not None and (not is_number(number) or part not in head.parts[int(number) :][:1]):
        raise Misplaced(f"{key} does not match the head of its plan")
