"""The page of a report on one run, from the template report.html."""

import shlex

from m5ws.pages import page
from m5ws.records.environment import Declared
from m5ws.records.verdict import Recheck, Verdict
from m5ws.reports import curves
from m5ws.reports.report import RunReport
from m5ws.repository.ledger.losses import number
from m5ws.repository.references import lineage
from m5ws.wording import changes, comparisons, incidents, sentences


def build(report: RunReport) -> str:
    """Return the page."""
    view = report.view
    return page.render(
        "report.html",
        title=f"Run {view.run.id}{f' {view.run.name}' if view.run.name else ''}",
        report=report,
        view=view,
        snapshot=report.snapshot,
        command=shlex.join(view.run.spec.command),
        banner=_banner(report),
        charts=curves.draw([(curve.label, curve.points) for curve in report.curves]),
        notices=[(attempt.attempt, notice) for attempt in view.state.attempts for notice in attempt.notices],
        lineage=lineage.format_lineage(view.lineage, view.lineage_whole),
        good=("reproduced", "sampled"),
        bad=("diverged", "nondeterministic"),
        counts=_counts,
        declared=_declared(report.snapshot.snapshot.declared),
        effect=changes.effect,
        label=comparisons.label,
        sentence=sentences.describe,
        sentences=lambda records: "; ".join(map(sentences.describe, records)),
        describe_cause=incidents.describe_cause,
        describe_advice=incidents.describe_advice,
        exact=_exact,
        recheck=_recheck,
    )


def _banner(report: RunReport) -> tuple[str, str]:
    """Return the newest verdict with its reason; if segments were judged together later, their joint verdict."""
    joint, newest = report.view.joint, report.verdicts[0] if report.verdicts else None
    if joint is not None and (newest is None or joint.created_s >= newest.created_s):
        parts = (f"{part}: {steps}." for part, steps in joint.parts.items())
        return joint.outcome, " ".join([f"{sentences.describe(joint.reason)}.", *parts])
    if newest is None:
        return "no verdict", f"No verdict on this run is in the store: m5ws reproduce {report.view.run.id}"
    older = f" Older verdicts: {len(report.verdicts) - 1}, see below." if len(report.verdicts) > 1 else ""
    return newest.outcome, f"{sentences.describe(newest)}.{older}"


def _counts(verdict: Verdict) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(verdict.compared.items()) if count)


def _recheck(recheck: Recheck) -> str:
    results = {True: "agrees with the first replay", False: "differs from the first replay", None: "has no result"}
    return f"{recheck.replay or 'it'} {results[recheck.repeats]}"


def _exact(text: str | None) -> str:
    """Return a quantity as it is stored, with its rounded number."""
    if text is None:
        return "absent"
    value = number(text) if text.startswith(("0x", "-0x", "nan:")) else None
    return text if value is None else f"{text} ({value:.9g})"


def _declared(declared: Declared) -> list[tuple[str, str]]:
    """Return the requirements of a snapshot."""
    image = [("image", declared.image)] if declared.image is not None else []
    locks = [(f"lock {name}", digest) for name, digest in declared.locks.items()]
    return [*locks, *((f"wanted {name}", value) for name, value in declared.wanted.items()), *image]
