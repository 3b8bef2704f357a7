"""MLflow's facts about a run besides its steps: one-line tags, the run's name and its datasets.

All of it is a pure function of the store, so it can be written again at any time with the same result. An absent fact
has the value "absent", so that MLflow's comparison page shows it.
"""

import contextlib
import hashlib
from collections.abc import Iterable

import msgspec

from m5ws.errors import NotFound
from m5ws.records.environment import Observed
from m5ws.records.incident import Incident
from m5ws.records.ledger import Notice, RankStarted
from m5ws.records.note import Note
from m5ws.records.run import Run
from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.repository.ledger import ledger
from m5ws.repository.references import incidents, notes, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.wording.incidents import describe_advice, describe_cause

ABSENT = "absent"
RUN_TAG = "m5ws.run_id"
ATTEMPT_TAG = "m5ws.attempt"
RANK_TAG = "m5ws.rank"
SNAPSHOT_TAG = "m5ws.snapshot_id"
PARENT_PAGE_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
TAG_CHARACTERS = 8000
_SHORT = 12


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its snapshot. `facts` belong to its newest attempt, as its ranks observed them."""

    run: Run
    snapshot: Snapshot
    annotation: Annotation | None = None
    attempt: int | None = None
    facts: dict[str, str | None] = {}
    notes: tuple[Note, ...] = ()
    incident: Incident | None = None
    """The incident of the newest failed attempt."""


def load(repo: Repository, run_id: str) -> Subject:
    """Return a run with its snapshot and the facts of its newest attempt. Raises NotFound, CorruptObject."""
    run = runs.load(repo, run_id)
    attempt = max(ledger.attempts(repo, run_id), default=None)
    return Subject(
        run=run,
        snapshot=snapshots.load(repo, run.snapshot),
        annotation=_annotation(repo, run),
        attempt=attempt,
        facts={} if attempt is None else _facts(repo, run_id, attempt),
        notes=tuple(notes.load(repo, run_id)),
        incident=incidents.newest_of(repo, run_id),
    )


def tags(subject: Subject) -> dict[str, str]:
    """Return the tags of a run: m5ws's own, and MLflow's tags for its pages."""
    snapshot, facts = subject.snapshot, subject.facts
    own = {
        RUN_TAG: subject.run.id,
        ATTEMPT_TAG: _text(subject.attempt),
        SNAPSHOT_TAG: subject.run.snapshot,
        "m5ws.user": _text(subject.run.user),
        "m5ws.host": _text(subject.run.host),
        "m5ws.code_tree": snapshot.code.tree,
        "m5ws.config": snapshot.config,
        "m5ws.tokenizer": _text(snapshot.tokenizer and snapshot.tokenizer.tree),
        "m5ws.data": _data(snapshot),
        "m5ws.image_digest": _text(snapshot.declared.image or facts.get("container.image")),
        "m5ws.nccl": _text(facts.get("nccl")),
        "m5ws.efa": _versions(facts, {"driver": "efa.driver", "libfabric": "libfabric", "ofi-nccl": "aws-ofi-nccl"}),
        "m5ws.cuda": _text(facts.get("torch.cuda")),
        "m5ws.driver": _text(facts.get("gpu.driver")),
        "m5ws.torch": _text(facts.get("torch")),
        "m5ws.gpu": _gpu(facts),
    }
    if subject.run.reproduces is not None:
        own["m5ws.reproduces"] = subject.run.reproduces
    if subject.run.sweep is not None:
        own["m5ws.sweep"] = subject.run.sweep.id
    if (parent := subject.run.parent) is not None:
        own |= {"m5ws.parent_run": parent.run, "m5ws.parent_step": str(parent.step)}
    return {key: _one_line(value) for key, value in (own | _source(subject)).items()}


def note_tags(subject: Subject) -> dict[str, str]:
    """Return the tags of a run's notes: its expectation, the newest note and the newest outcome; no absent notes."""
    newest = next((note.text for note in reversed(subject.notes) if note.kind == "note"), None)
    texts = {"why": notes.why(subject.notes), "note": newest, "outcome": notes.outcome(subject.notes)}
    return {f"m5ws.{key}": _one_line(value) for key, value in texts.items() if value is not None}


def cause_tags(subject: Subject) -> dict[str, str]:
    """Return the tags of the newest failure of a run: its cause and advice, and earlier failures; none without one."""
    if (incident := subject.incident) is None:
        return {}
    advice = describe_advice(incident.cause) if incident.cause is not None else ABSENT
    tags = {
        "m5ws.cause": f"{describe_cause(incident)}, attempt {incident.attempt}",
        "m5ws.cause_advice": advice,
        "m5ws.cause_earlier": " ".join(incident.memory) or ABSENT,
    }
    return {key: _one_line(value) for key, value in tags.items()}


def name(run: Run) -> str:
    """Return the name of a run in MLflow."""
    if run.name:
        return run.name
    return f"replay {run.id} of {run.reproduces}" if run.reproduces else f"run {run.id}"


def notice_tag(notices: Iterable[Notice]) -> dict[str, str]:
    """Return the tag that counts and quotes notices; none if there are no notices."""
    messages = [
        notice.message if notice.step is None else f"step {notice.step}: {notice.message}" for notice in notices
    ]
    return {"m5ws.notices": _one_line(f"{len(messages)}: {'; '.join(messages)}", 500)} if messages else {}


def _annotation(repo: Repository, run: Run) -> Annotation | None:
    """Return the snapshot's message when the run began. Later messages belong to other runs."""
    annotations = snapshots.annotations(repo, run.snapshot)
    before = [each for each in annotations if each.created_s <= run.created_s] or annotations[:1]
    return before[-1] if before else None


def _facts(repo: Repository, run_id: str, attempt: int) -> dict[str, str | None]:
    facts: dict[str, str | None] = {}
    for node in ledger.node_starts(repo, run_id, attempt):
        with contextlib.suppress(NotFound):
            facts |= repo.objects.get_record(node.observed, Observed).facts
    events = (event for _, event in ledger.read_events(repo, run_id, attempt, ("0",)))
    if (rank := next((event for event in events if isinstance(event, RankStarted)), None)) is not None:
        facts |= {key: value for key, value in rank.facts.items() if value is not None}
    return facts


def _source(subject: Subject) -> dict[str, str]:
    """Return the tags by which MLflow's pages show the origin of a run."""
    annotation, code = subject.annotation, subject.snapshot.code
    source = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": " ".join(subject.run.spec.command),
        "mlflow.source.git.commit": code.commit,
        "mlflow.source.git.dirty": str(code.dirty).lower() if code.commit else None,
        "mlflow.source.git.branch": annotation and annotation.branch,
        "mlflow.source.git.repoURL": annotation and annotation.remote,
        "mlflow.user": subject.run.user or (annotation and annotation.author),
    }
    return {key: value for key, value in source.items() if value}


def _data(snapshot: Snapshot) -> str:
    """Return each dataset's name and the start of its digest, without spaces, at which MLflow would break the line.

    Many datasets become one digest, so that cutting hides no difference.
    """
    digests = [(dataset.name, dataset.hash or dataset.tree) for dataset in snapshot.datasets]
    digests += [(dataset.name, dataset.hash or dataset.manifest) for dataset in snapshot.remote]
    line = ",".join(f"{name}={digest[:_SHORT]}" for name, digest in digests)
    if len(line) <= 500:
        return "_".join(line.split()) or ABSENT
    every = "".join(f"{name}\0{digest}\0" for name, digest in digests)
    return f"{len(digests)}-datasets={hashlib.sha256(every.encode()).hexdigest()[:16]}"


def _gpu(facts: dict[str, str | None]) -> str:
    model, count = facts.get("gpu.model"), facts.get("gpu.count")
    return f"{count} × {model}" if model and count else _text(model)


def _versions(facts: dict[str, str | None], names: dict[str, str]) -> str:
    return ",".join(f"{shown}={facts[name]}" for shown, name in names.items() if facts.get(name)) or ABSENT


def _text(value: object) -> str:
    return ABSENT if value in (None, "") else str(value)


def _one_line(value: str, limit: int = TAG_CHARACTERS) -> str:
    line = " ".join(value.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
