"""The description on a run's MLflow page, and the tags and lines that a verdict adds.

m5ws writes only between two markers. Text around them stays.
"""

from collections.abc import Sequence

from m5ws.records.note import Note
from m5ws.records.verdict import Divergence, JointVerdict, Outcome, Verdict
from m5ws.tracking.mlflow.tags import Subject
from m5ws.wording.changes import title
from m5ws.wording.comparisons import label
from m5ws.wording.sentences import describe

BEGIN = "[//]: # (m5ws: written by m5ws, down to its end mark)"
END = "[//]: # (m5ws: end)"
_CHANGES = 12
_CHARACTERS = 5000
_BY_STRENGTH: tuple[Outcome, ...]
_BY_STRENGTH = ("reproduced", "nondeterministic", "diverged", "sampled", "not comparable")
"""A whole replay with equal bits proves the most. A difference counts more than equal bits in a part of the run."""
_NOTE_CHARACTERS = 500


def describe_run(subject: Subject, verdicts: Sequence[Verdict], joint: JointVerdict | None = None) -> str:
    """Return the description in Markdown. `verdicts` name the run, oldest first.

    `joint` is its newest joint verdict.
    """
    run, code = subject.run, subject.snapshot.code
    spec = run.spec
    commit = f"commit `{code.commit[:12]}`" if code.commit else "no commit"
    state = " with uncommitted changes" if code.commit and code.dirty else ""
    seed = "" if spec.seed is None else f", seed {spec.seed}"
    # MLflow shows only the first lines, so the verdicts come first.
    lines = [_told_together(joint)] if joint is not None else []
    lines += [_told(subject, verdict) for verdict in reversed(verdicts)]
    lines += [
        f"m5ws run `{run.id}` of snapshot `{run.snapshot[:16]}` ({commit}{state}).",
        f"`{' '.join(spec.command)}` by {spec.processes}{seed}.",
    ]
    if run.reproduces:
        lines.append(f"Replay of run `{run.reproduces}`.")
    if run.parent is not None:
        lines.append(f"Starts after step {run.parent.step} of run `{run.parent.run}`.")
    if subject.annotation and subject.annotation.message:
        lines.append(f"> {' '.join(subject.annotation.message.split())}")
    lines += [_noted(note) for note in subject.notes]
    lines.append(f"Reproduce it: `m5ws reproduce {run.id}`")
    return "\n\n".join(lines)[:_CHARACTERS]


def _noted(note: Note) -> str:
    kind = "Why" if note.kind == "why" else "Note"
    outcome = f" ({note.outcome})" if note.outcome else ""
    text = " ".join(note.text.split())
    return f"> **{kind}**{outcome}: {text[:_NOTE_CHARACTERS]}{'…' * (len(text) > _NOTE_CHARACTERS)}"


def placed(existing: str | None, text: str) -> str:
    """Return the description with m5ws's part replaced by `text`. Without such a part, put `text` first."""
    part = f"{BEGIN}\n\n{text}\n\n{END}"
    if not existing:
        return part
    before, begin, rest = existing.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return f"{before}{part}{after}"
    return f"{part}\n\n{existing}"


def verdict_tags(run_id: str, verdicts: Sequence[Verdict], joint: JointVerdict | None = None) -> dict[str, str]:
    """Return the tags of a run's verdicts: the strongest and the newest verdict, and the replays.

    `m5ws.verdict` is the strongest outcome, in the order of `_BY_STRENGTH`. `m5ws.reproduced_by` has only replays that
    reproduced the run, `m5ws.replayed_by` has all.
    """
    if not verdicts:
        return {}
    newest = verdicts[-1]
    outcomes = [verdict.outcome for verdict in verdicts]
    tags = {"m5ws.verdict.first": first(newest.first)}
    replays = [verdict for verdict in verdicts if verdict.run == run_id]
    if replays:
        tags["m5ws.replayed_by"] = _joined([name for verdict in replays for name in verdict.replays])
    if proofs := [verdict.replay for verdict in replays if verdict.outcome == "reproduced"]:
        tags["m5ws.reproduced_by"] = _joined(proofs)
    if joint is not None:
        outcomes.insert(len(outcomes) if joint.created_s >= newest.created_s else 0, joint.outcome)
        steps = {name: joint.parts.get(name, "none") for name in ("verified", "not verified", "differs")}
        tags |= {f"m5ws.segments.{name.replace(' ', '_')}": value[:_CHARACTERS] for name, value in steps.items()}
    tags["m5ws.verdict"] = next(outcome for outcome in _BY_STRENGTH if outcome in outcomes)
    tags["m5ws.verdict.newest"] = outcomes[-1]
    return tags


def first(divergence: Divergence | None) -> str:
    """Return the first difference in one line."""
    if divergence is None:
        return "none"
    tensor = f", tensor {divergence.tensor}" if divergence.tensor else ""
    if divergence.tensor and divergence.tensor_step is not None:
        tensor += f" (at step {divergence.tensor_step})"
    values = f"{divergence.original or 'absent'} → {divergence.replayed or 'absent'}"
    return f"step {divergence.step}, rank {divergence.rank}, {label(divergence)}{tensor}: {values}"


def _told_together(joint: JointVerdict) -> str:
    parts = [f"- {name}: {steps}" for name, steps in joint.parts.items()]
    return "\n".join([f"**{joint.outcome}**, segment by segment: {describe(joint.reason)}", *parts])


def _told(subject: Subject, verdict: Verdict) -> str:
    replays = " and ".join(f"`{name}`" for name in verdict.replays)
    replay = subject.run.id in verdict.replays
    whom = f"of run `{verdict.run}`" if replay else f"by run{'s' * (len(verdict.replays) > 1)} {replays}"
    lines = [f"**{verdict.outcome}** {whom}: {describe(verdict)}"]
    if verdict.explanation is not None:
        place, causes = verdict.explanation.place, " or ".join(map(str, verdict.explanation.causes))
        lines.append(f"- examined: {place.words if place is not None else 'no difference'}; cause: {causes}")
    if verdict.compared:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.compared.items()))
        lines.append(f"- equal: {counts}")
    lines += [f"- changed: {title(change)}" for change in verdict.changes[:_CHANGES]]
    if len(verdict.changes) > _CHANGES:
        lines.append(f"- and {len(verdict.changes) - _CHANGES} more changes")
    if verdict.unequal:
        lines.append(f"- {len(verdict.unequal)} results differ or were not compared: `m5ws show {verdict.replay}`")
    if verdict.not_compared:
        lines.append(f"- not compared: {'; '.join(map(describe, verdict.not_compared))}")
    return "\n".join(lines)


def _joined(ids: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(ids))
