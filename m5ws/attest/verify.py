"""`verify`: compare a statement with a store. Reads only. A fault becomes a finding, and the check continues."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from m5ws.attest import claims
from m5ws.attest.claims import StatementProblem
from m5ws.errors import CorruptObject, NotFound
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.attestation import ChainEnd, CheckpointLine, OutputsLine, Statement, failed_algorithms
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.records.snapshot import Snapshot
from m5ws.records.verdict import Verdict
from m5ws.repository import bindings, presence
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.fsck.records import Records
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.chains import Chain, find_faults
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, outputs, runs
from m5ws.repository.repository import Repository
from m5ws.reproduce import segments

T = TypeVar("T")
_Place = tuple[str, int, int]


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verification: counts, faults (`findings`) and additions since the statement (`notes`).

    `read` objects were read, `present` objects were only found to exist.
    """

    files: int
    chains: int
    events: int
    read: int
    present: int
    findings: tuple[StatementProblem, ...]
    notes: tuple[str, ...]


def check(repo: Repository, statement: Statement, *, read_data: bool, progress: Progress | None = None) -> Verification:
    """Compare a statement with a store; with `read_data`, read every byte of the snapshot and the checkpoints.

    Raises NotFound if the store does not have the run, and M5Error if it does not answer.
    """
    return _Check(repo, statement, progress or (lambda *_: None)).done(read_data=read_data)


class _Check:
    """The check of one statement against one store."""

    def __init__(self, repo: Repository, statement: Statement, progress: Progress) -> None:
        self._repo, self._statement, self._predicate = repo, statement, statement.predicate
        self._progress = progress
        self._findings: list[StatementProblem] = []
        self._notes: list[str] = []
        self._chains: dict[_Place, Chain] = {}
        self._made: dict[str, Checkpoint] = {}

    def done(self, *, read_data: bool) -> Verification:
        if "run" not in self._repo.store.names(f"runs/{self._predicate.run}/"):
            raise NotFound(
                f"run {self._predicate.run} is not in this store",
                hint="Fetch the run from another store with `m5ws pull`.",
            )
        named = self._statement.named
        for number, subject in enumerate(named):
            self._progress("reading subjects", number, len(named))
            data = self._read(subject.name, partial(self._repo.store.get, subject.name))
            for algorithm in failed_algorithms(subject, data) if data is not None else ():
                why = f"its {algorithm} digest differs" if algorithm else "the statement has no supported digest of it"
                self._find(subject.name, why)
        self._records()
        self._ledgers()
        read, present = self._objects(read_data=read_data)
        return Verification(
            files=len(named),
            chains=len(self._chains),
            events=sum(chain.order.events for chain in self._chains.values()),
            read=read,
            present=present,
            findings=tuple(self._findings),
            notes=tuple(self._notes),
        )

    def _find(self, what: str, detail: str) -> None:
        if (finding := StatementProblem(what=what, detail=detail)) not in self._findings:
            self._findings.append(finding)

    def _read(self, what: str, read: Callable[[], T]) -> T | None:
        """Return the result of a read or a check; None if it failed, which is a finding."""
        try:
            return read()
        except runs.UNREADABLE as error:
            self._find(what, str(error))
            return None

    # --- records -----------------------------------------------------------------------------------

    def _record(self, name: str, kind: type[codec.R]) -> codec.R | None:
        if name.startswith("objects/"):
            return self._read(name, lambda: codec.decode(self._repo.store.get(name), kind, name))
        return self._read(name, partial(bindings.record, self._repo.store, name, kind))

    def _records(self) -> None:
        """Compare the fields of the statement with the records in the store."""
        predicate = self._predicate
        run = self._record(f"runs/{predicate.run}/run", Run)
        if run is not None and run.snapshot != predicate.snapshot:
            self._find(f"runs/{predicate.run}/run", f"its snapshot is {run.snapshot}")
        for line in predicate.verdicts:
            verdict, replay = self._record(line.record.name, Verdict), self._record(line.replay.name, Run)
            if verdict is not None and replay is not None:
                self._read(line.record.name, partial(bindings.check_verdict, verdict, replay))
            if verdict is not None and claims.plain(verdict) != line.found:
                self._find(line.record.name, "the verdict in the store differs from the statement")
            if replay is not None and replay.reproduces != predicate.run:
                self._find(line.replay.name, f"it reproduces {replay.reproduces or 'no run'}")
        for checkpoint in predicate.checkpoints:
            self._checkpoint(checkpoint)
        for files in predicate.outputs:
            self._outputs(files)

    def _checkpoint(self, line: CheckpointLine) -> None:
        record = self._record(line.record.name, Checkpoint)
        if record is None:
            return
        run, _, name = line.name.partition("@")
        if (record.run, record.step, key(record.content)) != (run, line.step, line.content.name):
            self._find(line.name, f"its record has step {record.step} of run {record.run}, or another content")
        self._made[line.name] = record
        self._read(line.name, partial(bindings.check, checkpoints.key(run, name), record))
        # A fork's run record contains the digest of its checkpoint, so no reference is needed.
        if run == self._predicate.run:
            self._reference(line, checkpoints.key(run, name))

    def _outputs(self, line: OutputsLine) -> None:
        record = self._record(line.record.name, OutputFiles)
        if record is None:
            return
        run, _, name = line.name.partition("@")
        self._read(line.name, partial(bindings.check, outputs.key(run, name), record))
        if key(record.content) != line.content.name:
            self._find(line.name, "its record has another content")
        self._reference(line, outputs.key(run, name))

    def _reference(self, line: CheckpointLine | OutputsLine, where: str) -> None:
        digest = self._read(line.name, partial(bindings.line, self._repo.store, where))
        if digest is not None and key(digest) != line.record.name:
            self._find(line.name, "another record has this name now")

    # --- ledgers -----------------------------------------------------------------------------------

    def _ledgers(self) -> None:
        lines = {(line.run, line.attempt, line.node): line for line in self._predicate.ledgers}
        wanted = {head for record in self._made.values() for head in record.ledger.values()}
        for number, (_, line) in enumerate(lines.items()):
            self._progress("reading ledgers", number, len(lines))
            self._chain(line, {line.head, *wanted})
        for run, attempt in dict.fromkeys(place[:2] for place in lines):
            self._ends(run, attempt)
        self._events()
        for environment in self._predicate.environments:
            chains = self._of_attempt(environment.run, environment.attempt)
            observed = [key(digest) for chain in chains for digest in chain.observed]
            if chains and environment.record.name not in observed:
                self._find(environment.record.name, f"{chains[0].prefix} has another environment")
        self._later(lines)
        self._steps()

    def _of_attempt(self, run: str, attempt: int) -> list[Chain]:
        """Return the chains of an attempt that could be followed, if the chain of node 0 is among them."""
        chains = [chain for place, chain in sorted(self._chains.items()) if place[:2] == (run, attempt)]
        return chains if chains and chains[0].node == 0 else []

    def _chain(self, line: ChainEnd, wanted: set[Digest]) -> None:
        """Follow a chain. It must contain the attested head, and may be longer only if its attempt had not ended."""
        chain = Chain(line.run, line.attempt, line.node)
        try:
            chain.follow(self._repo, wanted)
        except runs.UNREADABLE as error:
            self._find(f"{chain.prefix}/{chain.batches:08d}", str(error))
            return
        self._chains[line.run, line.attempt, line.node] = chain
        if chain.ends.get(line.head) != (line.batches, line.events, line.sha256):
            self._find(chain.prefix, f"the {line.events} attested events are not in this ledger")
        elif (newer := chain.order.events - line.events) > 0 and line.ended:
            self._find(chain.prefix, f"{newer} events came after the attempt had ended")
        elif newer > 0:
            self._notes.append(f"{chain.prefix} has {newer} newer events")

    def _events(self) -> None:
        """Compare each checkpoint with its event in the ledger."""
        digests = {line.name: line.record.name.rpartition("/")[2] for line in self._predicate.checkpoints}
        for event, name in (
            (event, f"{chain.run}@{event.name}") for chain in self._chains.values() for event in chain.published
        ):
            if (made := self._made.get(name)) is not None:
                self._read(name, partial(bindings.check_event, f"checkpoint {event.name}", digests[name], made, event))

    def _ends(self, run: str, attempt: int) -> None:
        """Compare the ends of ranks with the attempt's end event, and their heads with the heads in checkpoints."""
        made = {name: each for name, each in self._made.items() if (each.run, each.attempt) == (run, attempt)}
        heads = {head: name for name, record in made.items() for head in record.ledger.values()}
        if chains := self._of_attempt(run, attempt):
            for fault in find_faults(chains, heads):
                self._find(chains[0].prefix, fault)

    def _later(self, lines: Mapping[_Place, ChainEnd]) -> None:
        """Note attempts that began after the statement. They are no fault. A node that joined an ended attempt is."""
        for run, attempt in dict.fromkeys(place[:2] for place in lines if lines[place].ended):
            for node in ledger.nodes(self._repo, run, attempt):
                if (run, attempt, node) not in lines:
                    self._find(f"runs/{run}/ledger/{attempt:04d}/{node}", "the node is not in the statement")
        for run in dict.fromkeys(place[0] for place in lines):
            known = {attempt for name, attempt, _ in lines if name == run}
            if more := sorted(set(ledger.attempts(self._repo, run)) - known):
                self._notes.append(f"run {run} has newer attempts: {', '.join(map(str, more))}")

    def _steps(self) -> None:
        """Check that the segments cover all steps of the run. Newer steps are a note."""
        attested = self._predicate.segments
        try:
            now = segments.of_run(self._repo, self._predicate.run)
        except runs.UNREADABLE:
            return  # It recorded no steps, or its fault is a finding already.
        if not attested or (attested[0].first, attested[-1].last) != (now[0].first, now[-1].last):
            steps = f"{now[0].first + 1}-{now[-1].last}"
            detail = f"run {self._predicate.run} did steps {steps}, and the statement has other steps"
            self._notes.append(detail) if self._notes else self._find("segments", detail)

    # --- objects -----------------------------------------------------------------------------------

    def _objects(self, *, read_data: bool) -> tuple[int, int]:
        """Check all objects of snapshot and checkpoints. Return the numbers of read and of only found objects."""
        records = Records(self._repo.objects)
        records.walk("snapshot", self._predicate.snapshot, Snapshot)
        for line in self._predicate.checkpoints:
            records.walk(line.name, line.record.name.rpartition("/")[2], Checkpoint)
        for files in self._predicate.outputs:
            records.walk(files.name, files.record.name.rpartition("/")[2], OutputFiles)
        for digest, detail in {**records.corrupt, **records.unreadable}.items():
            self._find(key(digest), detail)
        rest = {
            digest: records.least.get(digest, 0) for digest in records.needed - records.read - records.corrupt.keys()
        }
        try:
            absent = presence.missing(self._repo.objects, rest)
        except CorruptObject as error:
            self._find("objects", str(error))
            return len(records.read), 0
        for digest in sorted(absent):
            self._find(key(digest), "the object is missing")
        waiting = sorted(rest.keys() - absent)
        if not read_data:
            return len(records.read), len(waiting)
        jobs: list[Job[str | None]] = [(rest[digest], partial(self._whole, digest)) for digest in waiting]
        for number, (digest, trouble) in enumerate(zip(waiting, bounded_map(jobs), strict=True)):
            self._progress("reading objects", number, len(waiting))
            if trouble is not None:
                self._find(key(digest), trouble)
        return len(records.read) + len(waiting), 0

    def _whole(self, digest: Digest) -> str | None:
        try:
            self._repo.objects.get(digest)
        except runs.UNREADABLE as error:
            return str(error)
        return None
