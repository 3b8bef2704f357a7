"""Checks of a statement without a store: its signatures, and contradictions within it."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from m5ws.attest import ssh_signatures
from m5ws.attest.ssh_signatures import SignatureCheck
from m5ws.records.attestation import PAYLOAD_TYPE, Envelope, Predicate, Statement, from_base64, pae
from m5ws.records.verdict import Verdict
from m5ws.repository.objects import key
from m5ws.reproduce.verdict.joint import joint_outcome


class StatementProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a statement: its object `what`, and the detail."""

    what: str
    detail: str


def signatures(envelope: Envelope, body: bytes, allowed: Path | None) -> list[SignatureCheck]:
    """Return the check of each signature of an envelope. Raises M5Error if a signature cannot be checked."""
    payload = pae(PAYLOAD_TYPE, body)
    return [ssh_signatures.check(_bytes(signature.sig), payload, allowed) for signature in envelope.signatures]


def unsigned(checks: Sequence[SignatureCheck], *, required: bool) -> list[StatementProblem]:
    """Return the fault of the signatures as a whole. One good signature is enough; none is needed unless `required`."""
    if any(check.good for check in checks) or not (checks or required):
        return []
    if not checks:
        return [StatementProblem(what="signature", detail="the statement is not signed")]
    whose = " by a key of the allowed signers" if required else ""
    return [
        StatementProblem(
            what="signature", detail=f"none of {len(checks)} signatures is valid for this statement{whose}"
        )
    ]


def _bytes(text: str) -> bytes:
    try:
        return from_base64(text)
    except ValueError:
        return b""  # Not base64, so no signature is valid for it.


def plain(verdict: Verdict) -> dict[str, object]:
    """Return all fields of a verdict as JSON values."""
    values: dict[str, object] = msgspec.json.decode(msgspec.json.encode(verdict))
    return values


def contradictions(statement: Statement) -> list[StatementProblem]:
    """Return the contradictions within a statement, which show without a store."""
    predicate, findings = statement.predicate, []
    verdicts = []
    for line in predicate.verdicts:
        try:
            verdict = msgspec.convert(line.found, Verdict)
        except msgspec.ValidationError as error:
            return [StatementProblem(what=line.record.name, detail=f"the statement has no valid verdict: {error}")]
        verdicts.append(verdict)
        names = (f"runs/{verdict.replay}/run", f"runs/{verdict.replay}/verdict")
        if (line.replay.name, line.record.name) != names or verdict.run != predicate.run:
            findings.append(StatementProblem(what=line.record.name, detail="the verdict is on another run"))
    if not verdicts:
        findings.append(StatementProblem(what="verdicts", detail="the statement has none"))
    elif (outcome := joint_outcome(verdicts, predicate.segments)[0]) != predicate.outcome:
        detail = f"the statement has {predicate.outcome}, and its verdicts give {outcome}"
        findings.append(StatementProblem(what="outcome", detail=detail))
    subjects = {subject.name for subject in statement.subject}
    needed = [f"runs/{predicate.run}/run", key(predicate.snapshot)]
    needed += [part.name for line in predicate.checkpoints for part in (line.record, line.content)]
    missing = "missing in the statement's list of subjects"
    findings += [StatementProblem(what=name, detail=missing) for name in needed if name not in subjects]
    places = Counter((line.run, line.attempt, line.node) for line in predicate.ledgers)
    twice = ["runs/{}/ledger/{:04d}/{}".format(*place) for place, count in places.items() if count > 1]
    findings += [StatementProblem(what=name, detail="listed twice") for name in twice]
    if (predicate.run, 1, 0) not in places:
        findings.append(StatementProblem(what=f"run {predicate.run}", detail="its ledger is not listed"))
    return findings + _apart(predicate)


def _apart(predicate: Predicate) -> list[StatementProblem]:
    """Return findings on segments that leave a gap, or that start from a checkpoint that is not listed."""
    records = {line.name: line.record.name for line in predicate.checkpoints}
    absent = "the checkpoint that it starts from is not listed, or has another digest"
    return [
        *(
            StatementProblem(what=f"{part}", detail=f"the segment before it ends after step {before.last}")
            for before, part in pairwise(predicate.segments)
            if part.first != before.last
        ),
        *(
            StatementProblem(what=f"{part}", detail=absent)
            for part in predicate.segments
            if part.digest is not None and records.get(f"{predicate.run}@{part.checkpoint}") != key(part.digest)
        ),
    ]
