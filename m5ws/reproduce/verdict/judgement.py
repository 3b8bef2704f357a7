"""The verdict on a replay that has ended, before publication.

The verdict is *reproduced* only if the replay ended well, state was compared, the replay has every record of the
original, and every compared quantity is equal (promise 8).
"""

import time
from typing import Literal

from m5ws.diff import commit_history, diff
from m5ws.records.ledger import COMPLETE
from m5ws.records.run import Run
from m5ws.records.verdict import Divergence, Verdict
from m5ws.repository import cross_check
from m5ws.reproduce import gaps, refusals
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import output_files, results
from m5ws.reproduce.outputs.output_files import OutputRules
from m5ws.reproduce.verdict import headline, reason
from m5ws.runs import supervise
from m5ws.runs.outputs import outputs

_NAMED = 3
"""Uncompared results that the first sentence of a verdict names. Lines below it list them."""


def judge(
    ports: supervise.Ports,
    replay: Run,
    comparison: Comparison,
    result: supervise.AttemptResult,
    rules: OutputRules | None = None,
    *,
    judge_generators: bool = True,
    ends_early: bool = False,
) -> Verdict:
    """Return the verdict on a replay that has ended. Reads the store and publishes nothing.

    Steps and state come first, then the delivered results, judged by `rules` if both runs ended by themselves.
    `ends_early`: the replay is of a segment before the end of the original. With `judge_generators`, a run whose own
    resume did not restore generators is at most *sampled*.
    """
    assert replay.reproduces is not None
    rules = rules or OutputRules()
    missing = list(gaps.missing(comparison))
    runs = (replay.reproduces, replay.id)
    is_whole = result.outcome in COMPLETE or comparison.is_exhausted(has_ended=True)
    comparison.compare_ends()
    files = results.compare(ports.repo, ports.tracker, comparison, runs, rules, ends_early=ends_early)
    comparison.equal.update(files.evidence)
    first = comparison.first() or results.divergence(files, comparison.original.last_step)
    # The attempt whose record differs, or the first attempt of the run.
    began = next((attempt for _, attempt in comparison.original.begun), None)
    attempt = comparison.original.attempt_of(first.step) if first is not None else None
    changes = diff.between_runs(ports.repo, replay.reproduces, replay.id, attempt or began)
    changes = commit_history.detailed(changes, ports.history)
    outcome, why = _outcome(comparison, result, first, missing, is_whole=is_whole)
    if why == refusals.NOTHING and files.items:
        why = f"{headline.NO_COMMON}{headline.describe_others(files)}"
    if first is not None:
        changes = reason.with_threads(changes, comparison, first)
        resume = reason.find_resume(comparison, first, replay.begin)
        why = reason.explain(first, changes, resume, cross_check.find_rewritten(ports.repo, replay.reproduces))
    unknown = _find_unknown(comparison, judge_generators=judge_generators) or _find_unsure(files)
    if outcome == "reproduced":
        why = headline.describe(comparison, files) + (f". {unknown}" if unknown else "")
    return Verdict(
        run=replay.reproduces,
        replay=replay.id,
        outcome="sampled" if outcome == "reproduced" and (replay.segment is not None or unknown) else outcome,
        segment=replay.segment,
        compared=dict(comparison.equal + headline.count_listed(files)),
        not_compared=(
            *missing,
            *gaps.lost(comparison),
            *gaps.unplaced(comparison),
            *gaps.unobserved(comparison),
            *gaps.ends(comparison),
            *gaps.differing_generators(comparison),
            *gaps.only_in_original(comparison),
            *_given(replay),
            *_unrecorded(comparison, replay),
            *files.not_compared,
        ),
        items=files.items,
        results=tuple(pattern.text for pattern in rules.results),
        strict=rules.strict,
        hint=files.hint,
        first=first,
        changes=changes,
        observed=comparison.original.observed,
        reason=why,
        created_s=time.time(),
    )


def _outcome(
    comparison: Comparison,
    result: supervise.AttemptResult,
    first: Divergence | None,
    missing: list[str],
    *,
    is_whole: bool,
) -> tuple[Literal["reproduced", "diverged", "not comparable"], str | None]:
    if first is not None:
        return "diverged", None
    if not is_whole:
        return ("not comparable", f"the replay {result.outcome}: {result.message or f'status {result.exit_code}'}")
    if missing:
        return "not comparable", "the replay lacks records that the original has"
    if comparison.original.by_steps and not comparison.state_compared():
        return "not comparable", "the last recorded state was not compared, and equal losses alone prove little"
    if not comparison.equal:
        return "not comparable", refusals.NOTHING
    return "reproduced", None


def _find_unknown(comparison: Comparison, *, judge_generators: bool) -> str | None:
    """Return a sentence on a gap in the records, because of which they do not prove an equal end; None without one."""
    original, sides = comparison.original, (comparison.original, comparison.replay)
    if original.outcome is None:
        return "The end of the original is not recorded"
    if gaps.unobserved(comparison):
        return "An error ended the observation after that"
    if attempts := comparison.without_place():
        numbers = ", ".join(map(str, attempts))
        return (
            f"The steps of attempt {numbers} were not compared, only the end: no record proves after which step it "
            "continued. `m5ws.resumed_at(step)` in the script states it"
        )
    if comparison.ends_unknown():
        return "The end of the script was not recorded: it left Python by os._exit, or its machine was lost"
    if unlike := comparison.unlike_ends():
        return f"At the end of the script, nothing or only one of the two runs has a record of {unlike[0]}"
    if original.outcome == "failed" and comparison.replay.outcome == "failed" and _failed_otherwise(comparison):
        return f"The original ended with {original.message}, and the replay with {comparison.replay.message}"
    if judge_generators and (generators := comparison.unrestored_generators()):
        return (
            f"After the resume, the random generators ({', '.join(generators)}) differ, so results of draws that "
            "nothing records may differ"
        )
    # `certify` compares the state after each step. A notice of generators alone decides nothing there either.
    if judge_generators and any(side.is_inexact() for side in sides):
        return "A notice states that the resume was not exact (`m5ws show`)"
    return None


def _find_unsure(files: output_files.OutputReport) -> str | None:
    """Return a sentence on judged results that could not be compared; None without one."""
    return f"Not compared: {outputs.listed(list(map(str, files.unsure)), '; ', _NAMED)}" if files.unsure else None


def _failed_otherwise(comparison: Comparison) -> bool:
    return comparison.original.message != comparison.replay.message


def _given(replay: Run) -> list[str]:
    """Return lines on the checkpoint that a replay of a segment or fork starts from, which is not verified here."""
    segment, parent = replay.segment, replay.parent
    if segment is not None and segment.digest is not None:
        return [f"steps up to {segment.first}: given by checkpoint {segment.checkpoint} ({segment.digest[:12]})"]
    if parent is None:
        return []
    given = f"given by checkpoint {parent.name} ({parent.digest[:12]}), as for the original"
    return [f"steps up to {parent.step}: {given}"]


def _unrecorded(comparison: Comparison, replay: Run) -> list[str]:
    """Return lines on everything that neither side recorded, so that nobody takes it for verified."""
    if not comparison.original.by_steps:
        return ["steps and state: no step was recorded or observed; only files and metrics could be compared"]
    lines = [
        f"{kind}: none were recorded"
        for kind in ("quantities", "batches", "generators")
        if not comparison.equal[kind] and comparison.first() is None
    ]
    last = comparison.original.last_step
    done = last - replay.begin
    between = done - len([step for step in comparison.original.states.get(0, {}) if step])
    if between > 0:
        lines.append(f"state after {between} of {done} steps: no fingerprints were recorded there")
    if comparison.original.outcome != "finished":
        lines.append(f"the original ended {comparison.original.outcome or 'unrecorded'} after step {last}")
    return lines
