"""The verdict on a replay that has ended, before publication.

The verdict is *reproduced* only if the replay ended well, state was compared, the replay has every record of the
original, and every compared quantity is equal (promise 8).
"""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from m5ws.agent.ports import Ports
from m5ws.attempts.results import AttemptResult
from m5ws.diff import commit_history, diff
from m5ws.records.ledger import COMPLETE
from m5ws.records.reasons import Differs, Ended, Equal, Fact, Gap, Reason
from m5ws.records.run import Run
from m5ws.records.verdict import Change, Divergence, Outcome, Verdict
from m5ws.repository import cross_check
from m5ws.reproduce import gaps
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import results
from m5ws.reproduce.outputs.output_files import OutputReport, OutputRules
from m5ws.reproduce.verdict import resume
from m5ws.runs import recorded_steps


def judge(
    ports: Ports,
    replay: Run,
    comparison: Comparison,
    result: AttemptResult,
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
        rewritten = cross_check.find_rewritten(ports.repo, replay.reproduces)
        why: Reason = Differs(resume=resume.find_resume(comparison, first, replay.begin), rewritten=rewritten)
    else:
        outcome, why = judge_equal(comparison, result, files, is_part=replay.segment is not None)
    # Equal items that are not counted as evidence.
    listed = Counter(f"{item.kind}s" for item in files.items if item.status == "equal") - Counter(files.evidence)
    return Verdict(
        run=replay.reproduces,
        replay=replay.id,
        outcome=outcome,
        segment=replay.segment,
        compared=dict(comparison.equal + listed),
        not_compared=(*_list_gaps(comparison, replay), *gaps.unpinned(ports.repo, runs), *files.not_compared),
        items=files.items,
        results=tuple(pattern.text for pattern in rules.results),
        strict=rules.strict,
        hint=files.hint,
        first=first,
        changes=changes,
        observed=comparison.original.observed,
        reasons=(why,),
        created_s=time.time(),
    )


def _find_changes(ports: Ports, replay: Run, comparison: Comparison, first: Divergence | None) -> tuple[Change, ...]:
    """Return the changes from the attempt whose record differs, or from the first attempt of the run."""
    original = comparison.original
    began = next((attempt for _, attempt in original.begun), None)
    attempt = original.attempt_of(first.step) if first is not None else None
    changes = diff.between_runs(ports.repo, replay.reproduces or "", replay.id, attempt or began)
    changes = commit_history.detailed(changes, ports.history)
    return resume.with_threads(changes, comparison, first) if first is not None else changes


def judge_equal(
    comparison: Comparison, result: AttemptResult, files: OutputReport, *, is_part: bool = False
) -> tuple[Outcome, Reason]:
    """Return the outcome and the reason for a replay without a difference. `is_part`: it is of a segment."""
    if result.outcome not in COMPLETE and not comparison.is_exhausted(has_ended=True):
        ended = Ended(side="replay", outcome=result.outcome, reason=result.reason)
        return "not comparable", ended
    if gaps.missing(comparison):
        return "not comparable", Fact(kind="records missing")
    if comparison.original.by_steps and not comparison.state_compared():
        return "not comparable", Fact(kind="state not compared")
    if not comparison.equal:
        return "not comparable", Fact(kind="nothing in common" if files.items else "nothing recorded")
    is_end_unseen = comparison.original.observed and not files.has_tensors
    unseen = gaps.unseen_end(comparison) if is_end_unseen else ()
    doubt = next(chain(gaps.doubts(comparison), gaps.unrestored(comparison), unseen), None)
    is_sample = doubt is not None or bool(files.unsure) or is_part
    return "sampled" if is_sample else "reproduced", _count_equal(comparison, files, doubt)


def _count_equal(comparison: Comparison, files: OutputReport, doubt: Gap | None) -> Equal:
    """Return the equal state, steps and delivered results."""
    original = comparison.original
    lasts = ((states, recorded_steps.last(states)) for states in original.states.values())
    tensors = {name for states, last in lasts if last in states for name in states[last].tensors}
    return Equal(
        weights=bool(tensors),
        optimizer=any(name.startswith("optim") for name in tensors),
        steps=comparison.equal["steps"] // max(len(original.steps), 1),
        evidence=dict(files.evidence),
        doubt=doubt,
    )


def _list_gaps(comparison: Comparison, replay: Run) -> Iterator[Gap]:
    """Yield all that the comparison of steps and state does not cover."""
    yield from gaps.missing(comparison)
    yield from gaps.lost(comparison)
    yield from gaps.doubts(comparison)
    yield from gaps.unrestored(comparison)
    yield from gaps.only_in_original(comparison)
    yield from _given(replay)
    yield from gaps.unrecorded(comparison, replay.begin)


def _given(replay: Run) -> list[Gap]:
    """Return the checkpoint that a replay of a segment or fork starts from, which is not verified here."""
    segment, parent = replay.segment, replay.parent
    if segment is not None and segment.digest is not None:
        name, digest = segment.checkpoint, segment.digest
        return [Gap(kind="steps before the segment", step=segment.first, name=name, digest=digest)]
    if parent is None:
        return []
    return [Gap(kind="steps before the fork", step=parent.step, name=parent.name, digest=parent.digest)]
