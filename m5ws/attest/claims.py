"""What a statement on a verdict claims, held against itself and against its signatures: no store is needed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from m5ws.attest.interface import Signatures, Signed
from m5ws.records.attestation import PAYLOAD_TYPE, CheckpointLine, Envelope, Predicate, Statement, from_base64, pae
from m5ws.records.verdict import Verdict
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.objects import key
from m5ws.reproduce.verdict.joint import joint_outcome


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that does not hold: what it is about, and what is wrong."""

    what: str
    detail: str


def signatures(envelope: Envelope, body: bytes, port: Signatures, allowed: Path | None) -> list[Signed]:
    """Return what each signature of an envelope is worth. Raises M5Error where that cannot be found out."""
    return [port.check(_bytes(one.sig), pae(PAYLOAD_TYPE, body), allowed) for one in envelope.signatures]


def unsigned(found: Sequence[Signed], *, asked: bool) -> list[Finding]:
    """Return what is wrong with the signatures as a whole: one good one is enough. `asked`: whose was said."""
    if any(one.good for one in found) or not (found or asked):
        return []
    if not found:
        return [Finding(what="signature", detail="it is not signed")]
    whose = " by a key that the allowed signers have" if asked else ""
    return [Finding(what="signature", detail=f"none of {len(found)} is a good one of this statement{whose}")]


def _bytes(text: str) -> bytes:
    try:
        return from_base64(text)
    except ValueError:
        return b""  # What is no base64 is no signature.


def plain(verdict: Verdict) -> dict[str, object]:
    """Return all that a verdict says, as JSON has it."""
    found: dict[str, object] = msgspec.json.decode(msgspec.json.encode(verdict))
    return found


def said(statement: Statement) -> list[Finding]:
    """Return where a statement contradicts itself: what can be seen of it without a store."""
    told, found = statement.predicate, []
    verdicts = []
    for line in told.verdicts:
        try:
            verdict = msgspec.convert(line.found, Verdict)
        except msgspec.ValidationError as error:
            return [Finding(what=line.record.name, detail=f"what it says is no verdict: {error}")]
        verdicts.append(verdict)
        names = (f"runs/{verdict.replay}/run", f"runs/{verdict.replay}/verdict")
        if (line.replay.name, line.record.name) != names or verdict.run != told.run:
            found.append(Finding(what=line.record.name, detail="it is a verdict on something else"))
    if not verdicts:
        found.append(Finding(what="verdicts", detail="there are none"))
    elif (outcome := joint_outcome(verdicts, told.segments)[0]) != told.outcome:
        found.append(Finding(what="outcome", detail=f"it says {told.outcome}, and its verdicts say {outcome}"))
    subjects = {one.name for one in statement.subject}
    needed = (f"runs/{told.run}/run", key(told.snapshot), *_named(told.checkpoints))
    missing = "it is what the statement is about, and not among its subjects"
    found += [Finding(what=name, detail=missing) for name in needed if name not in subjects]
    places = Counter((line.run, line.attempt, line.rank) for line in told.ledgers)
    twice = ["runs/{}/ledger/{:04d}/{}".format(*place) for place, count in places.items() if count > 1]
    found += [Finding(what=name, detail="it is named twice") for name in twice]
    if (told.run, 1, LAUNCHER) not in places:
        found.append(Finding(what=f"run {told.run}", detail="its ledger is not named"))
    return found + _apart(told)


def _apart(told: Predicate) -> list[Finding]:
    """Return which segments do not follow the one before, or start from a checkpoint that is not named."""
    records = {line.name: line.record.name for line in told.checkpoints}
    absent = "the checkpoint that it starts from is not named, or another is"
    return [
        *(
            Finding(what=f"{part}", detail=f"the segment before it ends after step {before.last}")
            for before, part in pairwise(told.segments)
            if part.first != before.last
        ),
        *(
            Finding(what=f"{part}", detail=absent)
            for part in told.segments
            if part.digest is not None and records.get(f"{told.run}@{part.checkpoint}") != key(part.digest)
        ),
    ]


def _named(lines: Sequence[CheckpointLine]) -> Iterator[str]:
    for line in lines:
        yield from (line.record.name, line.content.name)
