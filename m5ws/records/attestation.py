"""Attestation of a verdict for other tools: an in-toto statement in a DSSE envelope. No I/O here.

The signature covers the exact bytes of the envelope's payload, never a re-encoding. Sources: DSSE 1.0.2
(github.com/secure-systems-lab/dsse, protocol.md and envelope.md), in-toto attestation framework v1 (github.com/in-toto/
attestation, spec/v1). docs/reference/attestation.md has the predicate, which m5ws defines.
"""

import base64
import binascii
import hashlib

import blake3
import msgspec

from m5ws.errors import UnknownSchema, UsageError
from m5ws.records.base import Count, Digest, RunId
from m5ws.records.run import Segment
from m5ws.records.verdict import Outcome

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "m5ws:verdict/v1"
NAMESPACE = "m5ws"
"""Namespace of the SSH signature. A signature that was made for git or a login does not count for a verdict."""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file: `name` is its key in the store, `digest` maps `sha256` and `blake3` to lower-case hex."""

    name: str
    digest: dict[str, str]


class ChainEnd(msgspec.Struct, frozen=True, kw_only=True):
    """State of a node's ledger: `events` events in `batches` files, whose joined bytes have the digest `sha256`.

    `head` is the hash chain after the last batch (docs/format.md). `ended`: the chain has the end of the attempt.
    """

    run: RunId
    attempt: Count
    node: Count
    batches: Count
    events: Count
    head: Digest
    sha256: Digest
    ended: bool


class CheckpointLine(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of the run: its record and its content. Equal states have equal content digests."""

    name: str
    step: Count
    record: Descriptor
    content: Descriptor


class OutputsLine(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a run's script left at the end of an attempt: `name` is RUN@NAME."""

    name: str
    record: Descriptor
    content: Descriptor


class EnvironmentLine(msgspec.Struct, frozen=True, kw_only=True):
    """The environment that an attempt observed."""

    run: RunId
    attempt: Count
    record: Descriptor


class VerdictLine(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict: `found` has all fields of its record, `replay` and `record` name the stored run and verdict."""

    found: dict[str, object]
    replay: Descriptor
    record: Descriptor

    @property
    def outcome(self) -> str:
        return str(self.found.get("outcome"))


class OtherVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict on the run that the statement does not rest on: an older verdict, or a verdict on a changed replay."""

    replay: RunId
    outcome: str
    why: str


class Predicate(msgspec.Struct, frozen=True, kw_only=True):
    """The statement about the run: its `outcome` and the evidence. `segments` are the segments of the run."""

    m5ws: str
    hash: str
    run: RunId
    outcome: Outcome
    reason: str
    snapshot: Digest
    segments: tuple[Segment, ...]
    verdicts: tuple[VerdictLine, ...]
    other_verdicts: tuple[OtherVerdict, ...]
    checkpoints: tuple[CheckpointLine, ...]
    environments: tuple[EnvironmentLine, ...]
    ledgers: tuple[ChainEnd, ...]
    outputs: tuple[OutputsLine, ...] = ()


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """An in-toto statement v1. Subjects: the run, its snapshot, checkpoints and output files with their contents."""

    type_: str = msgspec.field(default=STATEMENT_TYPE, name="_type")
    subject: tuple[Descriptor, ...]
    predicate_type: str = msgspec.field(default=PREDICATE_TYPE, name="predicateType")
    predicate: Predicate

    @property
    def named(self) -> list[Descriptor]:
        """Every stored file that the statement names; twice, if it is named by different digests."""
        predicate = self.predicate
        files = [*self.subject, *(line.record for line in predicate.environments)]
        for verdict in predicate.verdicts:
            files += [verdict.replay, verdict.record]
        for checkpoint in predicate.checkpoints:
            files += [checkpoint.record, checkpoint.content]
        for outputs in predicate.outputs:
            files += [outputs.record, outputs.content]
        unique = {(file.name, tuple(sorted(file.digest.items()))): file for file in files}
        return [file for _, file in sorted(unique.items())]


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """`sig` is an armoured SSH signature in base64. `keyid` is a hint at its key, and proves nothing."""

    sig: str
    keyid: str = ""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A DSSE envelope. Without a signature it only carries the statement."""

    payload: str
    payload_type: str
    signatures: tuple[Signature, ...]


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign: DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def payload(statement: Statement) -> bytes:
    """Return the bytes of a statement."""
    return msgspec.json.encode(statement, order="deterministic")


def envelope(body: bytes, signatures: tuple[Signature, ...] = ()) -> bytes:
    """Return the bytes of an envelope file."""
    record = Envelope(payload=to_base64(body), payload_type=PAYLOAD_TYPE, signatures=signatures)
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def opened(data: bytes, name: str) -> tuple[Envelope, bytes]:
    """Return the envelope in `data` and its payload. Raises UsageError for other bytes; `name` is for the message."""
    try:
        record = msgspec.json.decode(data, type=Envelope)
        body = from_base64(record.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(
            f"{name} is not a DSSE envelope: {error}", hint="`m5ws attest RUN -o FILE` writes one."
        ) from error
    if record.payload_type != PAYLOAD_TYPE:
        raise UsageError(f"{name} contains {record.payload_type!r}, not an in-toto statement", hint=_OTHER)
    return record, body


def statement(body: bytes, name: str) -> Statement:
    """Return the statement in a payload. Raises UnknownSchema for other statements than m5ws's on verdicts."""
    try:
        kind = msgspec.json.decode(body, type=_Kind)
        if (kind.type_, kind.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise UnknownSchema(f"{name} contains {kind.predicate_type!r} in a {kind.type_!r}", hint=_OTHER)
        return msgspec.json.decode(body, type=Statement)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownSchema(f"{name} is not a statement on a verdict: {error}", hint=_OTHER) from error


class _Kind(msgspec.Struct):
    type_: str = msgspec.field(name="_type")
    predicate_type: str = msgspec.field(name="predicateType")


_OTHER = f"This m5ws verifies in-toto statements of type {PREDICATE_TYPE!r}. A newer version may know more types."


def descriptor(name: str, data: bytes) -> Descriptor:
    """Return a stored file's name and digests: SHA-256 for other tools, and the store's own hash."""
    return Descriptor(name=name, digest={kind: _ALGORITHMS[kind](data) for kind in sorted(_ALGORITHMS)})


def failed_algorithms(file: Descriptor, data: bytes) -> list[str]:
    """Return the algorithms whose digest is not the digest of `data`; [""] if no algorithm is known."""
    known = {name: value for name, value in file.digest.items() if name in _ALGORITHMS}
    return [name for name, value in known.items() if _ALGORITHMS[name](data) != value] if known else [""]


_ALGORITHMS = {
    "sha256": lambda data: hashlib.sha256(data).hexdigest(),
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
}


def to_base64(data: bytes) -> str:
    """Return bytes in standard base64."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes:
    """Return bytes from base64, standard or URL-safe, as DSSE requires. Raises ValueError."""
    try:
        return base64.b64decode(text.translate(_STANDARD), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


_STANDARD = str.maketrans("-_", "+/")
