"""The page of a report on one run."""

import datetime as dt
import shlex
from collections.abc import Iterator, Sequence

from m5ws.environment import drift
from m5ws.pages import charts, page
from m5ws.pages.markup import Child, Markup, tag
from m5ws.records.note import Note
from m5ws.records.verdict import Change, Divergence, Verdict
from m5ws.reports import curves
from m5ws.reports.report import RunReport
from m5ws.repository import lineage
from m5ws.repository.ledger.losses import number
from m5ws.runs.listing import RunRow
from m5ws.runs.state import AttemptState

_GOOD = ("reproduced", "sampled", "consistent")
_BAD = ("diverged", "nondeterministic")


def build(report: RunReport) -> bytes:
    """Return the page as UTF-8."""
    run = report.view.run
    name = f" {run.name}" if run.name else ""
    return page.page(
        f"Run {run.id}{name}",
        _banner(report),
        page.section("Why", *_notes(report.view.notes)),
        page.section("The run", _launch(report)),
        page.section("Curves", *_charts(report)),
        page.section("Inputs", *_inputs(report)),
        page.section("Verdicts", *map(_verdict, report.verdicts)),
        page.section("Attempts", *_attempts(report)),
        page.section("Environment", *_environment(report)),
        page.section("Lineage", *_lineage(report)),
        page.section("Checkpoints and output files", *_results(report)),
        page.section("Check this page", *_check(report)),
    )


def moment(time_s: float | None) -> str | None:
    """Return a time in UTC, to the second; None for none."""
    if not time_s:
        return None
    try:
        return f"{dt.datetime.fromtimestamp(time_s, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OSError, OverflowError, ValueError):
        return f"{time_s} s"


# --- the result -----------------------------------------------------------------------------------------------------


def _banner(report: RunReport) -> Markup:
    """Return the newest verdict; if segments were judged together later, that one."""
    joint, newest = report.view.joint, report.verdicts[0] if report.verdicts else None
    if joint is not None and (newest is None or joint.created_s >= newest.created_s):
        words = [f"{joint.reason}.", *(f"{name}: {steps}." for name, steps in joint.parts.items())]
        return _box(joint.outcome, " ".join(words))
    if newest is None:
        return _box("no verdict", f"No verdict on this run is in the store: m5ws reproduce {report.view.run.id}")
    older = f" Older verdicts: {len(report.verdicts) - 1}, see below." if len(report.verdicts) > 1 else ""
    return _box(newest.outcome, f"{newest.reason or _comparison(newest)}{older}")


def _box(outcome: str, text: str) -> Markup:
    kind = "good" if outcome in _GOOD else "bad" if outcome in _BAD else ""
    return tag("div", tag("strong", outcome), tag("div", text), class_=f"verdict {kind}".strip())


def _comparison(verdict: Verdict) -> str:
    return f"Equal bit for bit: {counts}." if (counts := _counts(verdict)) else ""


def _counts(verdict: Verdict) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(verdict.compared.items()) if count)


def _verdict(verdict: Verdict) -> Markup:
    fields: dict[str, Child] = {
        "run": page.code(verdict.run),
        "replayed as": page.code(", ".join(verdict.replays)),
        "when": moment(verdict.created_s),
        "steps": str(verdict.segment) if verdict.segment is not None else None,
        "reason": verdict.reason,
        "equal": _counts(verdict) or None,
        "expected": verdict.expected.why if verdict.expected is not None else None,
        "after the first difference": str(verdict.course) if verdict.course is not None else None,
        "second replay": _recheck(verdict),
        "not equal": "; ".join(map(str, verdict.unequal)) or None,
        "not compared": "; ".join(verdict.not_compared) or None,
    }
    return tag(
        "div", _box(verdict.outcome, ""), page.fields(fields), _divergence(verdict.first), _changes(verdict.changes)
    )


def _recheck(verdict: Verdict) -> str | None:
    if (recheck := verdict.recheck) is None:
        return None
    results = {True: "agrees with the first one", False: "differs from the first one", None: "has no result"}
    return f"{recheck.replay or 'it'} {results[recheck.repeats]}"


def _divergence(divergence: Divergence | None) -> Markup | None:
    if divergence is None:
        return None
    tensor = divergence.tensor
    if tensor is not None and divergence.tensors_differ > 1:
        tensor = f"{tensor} and {divergence.tensors_differ - 1} more"
    fields: dict[str, Child] = {
        "first difference": f"step {divergence.step}, rank {divergence.rank}, {divergence.quantity}",
        "original": page.code(_value(divergence.original)),
        "replayed": page.code(_value(divergence.replayed)),
        "tensor": page.code(tensor),
    }
    return page.fields(fields)


def _value(text: str | None) -> str:
    """Return a quantity as it is stored, with its rounded number."""
    if text is None:
        return "absent"
    value = number(text) if text.startswith(("0x", "-0x", "nan:")) else None
    return text if value is None else f"{text} ({value:.9g})"


def _changes(changes: Sequence[Change]) -> Markup | None:
    rows = [
        (
            page.code(f"{change.part} {change.name}"),
            change.old or "absent",
            change.new or "absent",
            drift.effect(change.rating),
        )
        for change in changes
    ]
    return page.table(("changed", "original", "replay", "effect"), rows)


def _notes(notes: Sequence[Note]) -> Iterator[Markup]:
    for note in notes:
        head = ", ".join(part for part in (note.author, moment(note.created_s), note.outcome) if part)
        kind = tag("strong", "expected: ") if note.kind == "why" else None
        yield tag("p", kind, note.text, tag("br"), tag("span", head, class_="quiet"))


# --- inputs ---------------------------------------------------------------------------------------------------------


def _launch(report: RunReport) -> Markup | None:
    run, spec, code = report.view.run, report.view.run.spec, report.snapshot.snapshot.code
    changed = " with uncommitted changes" if code.commit and code.dirty else ""
    annotation = report.snapshot.annotations[0] if report.snapshot.annotations else None
    total = f" of {report.view.state.total_steps:,}" if report.view.state.total_steps else ""
    fields: dict[str, Child] = {
        "run": page.code(run.id),
        "replay of": page.code(run.reproduces),
        "state": f"{report.view.standing}, step {report.view.state.last_step:,}{total}",
        "started": moment(run.created_s),
        "command": page.code(shlex.join(spec.command)),
        "launch": spec.processes + (f", seed {spec.seed}" if spec.seed is not None else ""),
        "snapshot": page.code(run.snapshot),
        "commit": page.code(f"{code.commit}{changed}") if code.commit else None,
        "branch": annotation.branch if annotation else None,
        "remote": annotation.remote if annotation else None,
        "author": annotation.author if annotation else None,
        "message": annotation.message if annotation else None,
    }
    return page.fields(fields)


def _inputs(report: RunReport) -> Iterator[Markup | None]:
    yield tag(
        "p",
        "The snapshot's id is the digest of all inputs. A run sees them in a fresh, read-only copy, and nothing else.",
    )
    parts = report.snapshot.parts
    rows = [(part.name, page.code(part.tree), f"{part.files:,}", f"{part.size_bytes:,}") for part in parts]
    yield page.table(("part", "digest", "files", "bytes"), rows)
    pinned = [dataset for dataset in report.snapshot.snapshot.datasets if dataset.hash]
    yield page.table(
        ("dataset", "pinned by", "hash"), [(item.name, item.kind, page.code(item.hash)) for item in pinned]
    )
    values = page.table(("parameter", "value"), [(page.code(name), value) for name, value in report.parameters.items()])
    yield page.details(f"{len(report.parameters)} parameters", values) if values else None
    declared = report.snapshot.snapshot.declared
    wanted = {f"lock {name}": page.code(digest) for name, digest in declared.locks.items()}
    wanted |= {f"wanted {name}": page.code(value) for name, value in declared.wanted.items()}
    yield page.fields({**wanted, "image": page.code(declared.image)})


def _charts(report: RunReport) -> Iterator[Markup | None]:
    drawn = [curve for curve in report.curves if curve.points]
    for name in curves.names(curve.points for curve in drawn):
        lines = [charts.Line(label=curve.label, points=curve.points[name]) for curve in drawn if name in curve.points]
        yield charts.chart(name, lines)
    for curve in report.curves:
        if curve.problem is not None:
            yield tag("p", f"No curve of {curve.label}: {curve.problem}")


# --- where it ran ---------------------------------------------------------------------------------------------------


def _attempts(report: RunReport) -> Iterator[Markup | None]:
    yield page.table(
        ("attempt", "state", "began", "ended", "host", "resumed from", "steps", "message"),
        [_attempt(attempt) for attempt in report.view.state.attempts],
    )
    notices = [
        (str(attempt.attempt), notice.kind, "" if notice.step is None else str(notice.step), notice.message)
        for attempt in report.view.state.attempts
        for notice in attempt.notices
    ]
    yield page.table(("attempt", "notice", "step", "message"), notices)


def _attempt(attempt: AttemptState) -> list[Child]:
    began, ended = moment(attempt.started_s), moment(attempt.ended_s)
    resumed, steps = page.code(attempt.resume), f"{attempt.last_step:,}"
    return [str(attempt.attempt), attempt.standing, began, ended, attempt.host, resumed, steps, attempt.message]


def _environment(report: RunReport) -> Iterator[Markup | None]:
    observed = report.view.observed
    if observed is not None:
        present = {name: page.code(value) for name, value in sorted(observed.facts.items()) if value is not None}
        yield page.fields(present)
        absent = ", ".join(name for name, value in sorted(observed.facts.items()) if value is None)
        yield tag("p", f"absent: {absent}", class_="quiet") if absent else None
        rows = [(page.code(name), page.code(version)) for name, version in sorted(observed.distributions.items())]
        listed = page.table(("distribution", "version"), rows)
        yield page.details(f"{len(rows)} distributions", listed) if rows else None
    for attempt, changes in report.view.environments.items():
        yield tag("p", f"Attempt {attempt}, compared with the first one:")
        yield _changes(changes)


def _lineage(report: RunReport) -> Iterator[Markup | None]:
    view = report.view
    if (text := lineage.format_lineage(view.lineage, view.lineage_whole)) is not None:
        yield tag("p", f"This run starts {text}.")
    yield page.table(("replay", "when", "state", "verdict"), [_row(row, row.outcome) for row in view.replays])
    yield page.table(
        ("other replay of the same run", "when", "state", "verdict"),
        [_row(row, row.outcome) for row in report.siblings],
    )
    forks = [_row(row, f"after step {row.parent.step}" if row.parent else None) for row in view.forks]
    yield page.table(("fork", "when", "state", "start"), forks)


def _row(row: RunRow, last: str | None) -> list[Child]:
    return [
        tag("span", page.code(row.id), f" {row.name}" if row.name else None),
        moment(row.created_s),
        row.standing,
        last,
    ]


def _results(report: RunReport) -> Iterator[Markup | None]:
    checkpoints = [
        (page.code(row.name), f"{row.checkpoint.step:,}", page.code(row.checkpoint.content))
        for row in report.view.checkpoints
    ]
    yield page.table(("checkpoint", "after step", "content"), checkpoints)
    outputs = [(page.code(row.name), page.code(row.content)) for row in report.view.outputs]
    yield page.table(("output files", "content"), outputs)


def _check(report: RunReport) -> Iterator[Markup]:
    run = report.view.run.id
    yield tag("p", "This page was made from the store's records, and is no proof by itself. With access to the store:")
    commands = (
        f"m5ws show {run}          # all of it, from the records",
        f"m5ws reproduce {run}     # train again, and compare every recorded bit",
        f"m5ws attest {run}        # a statement that can be signed, for m5ws verify",
    )
    yield tag("pre", "\n".join(commands))
    yield tag("p", f"m5ws {report.version}, {moment(report.created_s)}", class_="quiet")
