"""The verdict on a replay that has ended, before publication.

The verdict is *reproduced* only if the replay ended well, state was compared, the replay has every record of the
original, and every compared quantity is equal (promise 8).
"""

import time
from collections.abc import Iterator

from m5ws.agent.ports import Ports
from m5ws.attempts import leader
from m5ws.diff import commit_history, diff
from m5ws.outputs import collect
from m5ws.records.ledger import COMPLETE
from m5ws.records.run import Run
from m5ws.records.verdict import Change, Divergence, Outcome, UnfinishedEnd, Verdict
from m5ws.repository import cross_check
from m5ws.reproduce import gaps, refusals
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import results
from m5ws.reproduce.outputs.output_files import OutputReport, OutputRules
from m5ws.reproduce.verdict import headline, reason

_NAMED = 3
"""Uncompared results that the first sentence of a verdict names. Lines below it list them."""


def judge(
    ports: Ports,
    replay: Run,
    comparison: Comparison,
    result: leader.AttemptResult,
    rules: OutputRules | None = None,
    *,
    ends_early: bool = False,
) -> Verdict:
    """Return the verdict on a replay that has ended. Reads the store and publishes nothing.

    Steps and state come first, then the delivered results, judged by `rules` if both runs ended by themselves.
    `ends_early`: the replay is of a segment before the end of the original.
    """
    assert replay.reproduces is not None
    rules = rules or OutputRules()
    comparison.compare_ends()
    runs = (replay.reproduces, replay.id)
    files = results.compare(ports.repo, ports.tracker, comparison, runs, rules, ends_early=ends_early)
    comparison.equal.update(files.evidence)
    first = comparison.first() or results.divergence(files, comparison.original.last_step)
    changes = _find_changes(ports, replay, comparison, first)
    if first is not None:
        outcome: Outcome = "diverged"
        resume = reason.find_resume(comparison, first, replay.begin)
        why = reason.explain(first, changes, resume, cross_check.find_rewritten(ports.repo, replay.reproduces))
    else:
        outcome, why = judge_equal(comparison, result, files, is_part=replay.segment is not None)
    return Verdict(
        run=replay.reproduces,
        replay=replay.id,
        outcome=outcome,
        segment=replay.segment,
        compared=dict(comparison.equal + headline.count_listed(files)),
        not_compared=(*_list_gaps(comparison, replay), *files.not_compared),
        items=files.items,
        results=tuple(pattern.text for pattern in rules.results),
        strict=rules.strict,
        hint=files.hint,
        first=first,
        changes=changes,
        observed=comparison.original.observed,
        unfinished=_find_unfinished(comparison),
        reason=why,
        created_s=time.time(),
    )


def _find_unfinished(comparison: Comparison) -> UnfinishedEnd | None:
    """Return the end of an original that did not finish; None for others."""
    outcome, step = comparison.original.outcome, comparison.original.last_step
    return UnfinishedEnd(outcome=outcome or "has no recorded end", step=step) if outcome not in COMPLETE else None


def _find_changes(ports: Ports, replay: Run, comparison: Comparison, first: Divergence | None) -> tuple[Change, ...]:
    """Return the changes from the attempt whose record differs, or from the first attempt of the run."""
    original = comparison.original
    began = next((attempt for _, attempt in original.begun), None)
    attempt = original.attempt_of(first.step) if first is not None else None
    changes = diff.between_runs(ports.repo, replay.reproduces or "", replay.id, attempt or began)
    changes = commit_history.detailed(changes, ports.history)
    return reason.with_threads(changes, comparison, first) if first is not None else changes


def judge_equal(
    comparison: Comparison, result: leader.AttemptResult, files: OutputReport, *, is_part: bool = False
) -> tuple[Outcome, str]:
    """Return the outcome and the reason for a replay without a difference. `is_part`: it is of a segment."""
    if result.outcome not in COMPLETE and not comparison.is_exhausted(has_ended=True):
        return "not comparable", f"the replay {result.outcome}: {result.message or f'status {result.exit_code}'}"
    if gaps.missing(comparison):
        return "not comparable", "the replay lacks records that the original has"
    if comparison.original.by_steps and not comparison.state_compared():
        return "not comparable", "the last recorded state was not compared, and equal losses alone prove little"
    if not comparison.equal:
        others = f"{headline.NO_COMMON}{headline.describe_others(files)}"
        return "not comparable", others if files.items else refusals.NOTHING
    unsure = f"Not compared: {collect.listed(list(map(str, files.unsure)), '; ', _NAMED)}" if files.unsure else None
    doubt = next(gaps.doubts(comparison), None) or unsure or next(iter(gaps.unrestored(comparison)), None)
    equal = headline.describe(comparison, files)
    why = f"{equal}. {doubt[:1].upper()}{doubt[1:]}" if doubt else equal
    return "sampled" if doubt or is_part else "reproduced", why


def _list_gaps(comparison: Comparison, replay: Run) -> Iterator[str]:
    """Yield all that the comparison of steps and state does not cover."""
    yield from gaps.missing(comparison)
    yield from gaps.lost(comparison)
    yield from gaps.doubts(comparison)
    yield from gaps.unrestored(comparison)
    yield from gaps.only_in_original(comparison)
    yield from _given(replay)
    yield from gaps.unrecorded(comparison, replay.begin)


def _given(replay: Run) -> list[str]:
    """Return lines on the checkpoint that a replay of a segment or fork starts from, which is not verified here."""
    segment, parent = replay.segment, replay.parent
    if segment is not None and segment.digest is not None:
        return [f"steps up to {segment.first}: given by checkpoint {segment.checkpoint} ({segment.digest[:12]})"]
    if parent is None:
        return []
    given = f"given by checkpoint {parent.name} ({parent.digest[:12]}), as for the original"
    return [f"steps up to {parent.step}: {given}"]
