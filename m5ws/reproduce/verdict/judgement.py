"""The verdict on a replay that has ended, before publication.

The verdict is *reproduced* only if the replay ended well, state was compared, the replay has every record of the
original, and every compared quantity is equal (promise 8).
"""

import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from m5ws.diff import commit_history, diff
from m5ws.records.ledger import COMPLETE
from m5ws.records.run import Run
from m5ws.records.verdict import Change, Divergence, Verdict
from m5ws.repository import cross_check
from m5ws.reproduce import gaps, refusals
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import output_files, results
from m5ws.reproduce.verdict import hints, reason
from m5ws.runs import supervise
from m5ws.runs.outputs import outputs

_NAMED = 3
"""Files that the first sentence of a verdict names. Lines below it list them."""
_TEXTS_ALONE = (
    "weights: no output file with tensors was compared. An equal file that contains only settings proves nothing about "
    "the training"
)


def judge(
    ports: supervise.Ports,
    replay: Run,
    comparison: Comparison,
    result: supervise.AttemptResult,
    ignore: Sequence[str] = (),
    *,
    judge_generators: bool = True,
) -> Verdict:
    """Return the verdict on a replay that has ended. Reads the store and publishes nothing.

    Output files decide if the script uses no session, finished, and no observed step differs. `ignore` has rules of
    files that are not judged, beside the defaults. With `judge_generators`, a run whose own resume did not restore
    generators is at most *sampled*.
    """
    assert replay.reproduces is not None
    missing = list(gaps.missing(comparison))
    runs = (replay.reproduces, replay.id)
    by_session = comparison.original.by_session
    is_whole = result.outcome in COMPLETE or comparison.is_exhausted(has_ended=True)
    comparison.compare_ends()
    first, files = _compare_results(ports, comparison, runs, ignore, is_whole=is_whole)
    # The attempt whose record differs, or the first attempt of the run.
    began = next((attempt for _, attempt in comparison.original.begun), None)
    attempt = comparison.original.attempt_of(first.step) if first is not None else None
    changes = diff.between_runs(ports.repo, replay.reproduces, replay.id, attempt or began)
    changes = commit_history.detailed(changes, ports.history)
    metrics: tuple[str, ...] = ()
    if by_session and first is None:
        metrics = results.metrics_beside(ports.tracker, comparison, runs, whole=replay.segment is None)
    outcome, why = _outcome(comparison, result, first, missing, is_whole=is_whole)
    if first is not None:
        why = reason.reason(
            first, changes, _find_hint(ports, replay, comparison, first, changes), hints.kind(comparison, first)
        )
    unknown = _find_unknown(comparison, judge_generators=judge_generators) or _find_unpaired(comparison, files)
    if outcome == "reproduced" and unknown:
        why = _so_far(comparison, unknown)
    elif outcome == "reproduced":
        why = _limits(comparison, files) if replay.segment is None else None
    return Verdict(
        run=replay.reproduces,
        replay=replay.id,
        outcome="sampled" if outcome == "reproduced" and (replay.segment is not None or unknown) else outcome,
        segment=replay.segment,
        compared=dict(comparison.equal),
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
            *((_TEXTS_ALONE,) if _has_texts_alone(comparison, files) and outcome == "reproduced" else ()),
            *metrics,
            *files.not_compared,
        ),
        outputs=_beside(comparison, files),
        first=first,
        changes=changes,
        observed=comparison.original.observed,
        reason=why,
        created_s=time.time(),
    )


def _find_hint(
    ports: supervise.Ports, replay: Run, comparison: Comparison, first: Divergence, changes: Sequence[Change]
) -> hints.Hint | None:
    """Return the cause of a first difference that the records of the original suggest; None without one."""
    if false := cross_check.find_rewritten(ports.repo, replay.reproduces or ""):
        return hints.record_hint(false)
    hint = hints.find_hint(comparison, first, replay.begin)
    if (hint is not None and hint.strong) or any(change.rating != "cannot" for change in changes):
        return hint
    at = comparison.original.resumed_before(first.step)
    resume = hints.resume_hint(comparison) if hint is None or at is not None else None
    if hint is not None and resume is not None and comparison.was_equal_between(at or 0, first.step):
        # The resume may still be the cause, by the data of the next epoch or by state that no record has.
        words = (
            f"{resume.words}. The first state after that resume is equal. If it was exact, the cause is {hint.words}"
        )
        return msgspec.structs.replace(resume, words=words)
    # The resume of a script is a likelier cause than a pattern of differences after it.
    return resume or hint


def _compare_results(
    ports: supervise.Ports, comparison: Comparison, runs: tuple[str, str], ignore: Sequence[str], *, is_whole: bool
) -> tuple[Divergence | None, output_files.OutputReport]:
    """Return the first difference of steps, states or results that decides, and the report on the output files.

    `is_whole`: the replay trained as far as the original.
    """
    first, original = comparison.first(), comparison.original
    if not original.by_session and not is_whole:
        return first, output_files.OutputReport(not_compared=("output files and metrics: the replay did not finish",))
    if not original.by_session and original.outcome not in COMPLETE:
        # They are those of the step at which it ended, and the replay may have done more.
        unjudged = ("output files and metrics: the original did not finish",)
        return first, output_files.OutputReport(not_compared=unjudged)
    if not original.by_session and first is None:
        return results.files_and_metrics(ports.repo, ports.tracker, comparison, runs, ignore)
    if original.outputs is not None and comparison.replay.outputs is None:
        return first, output_files.OutputReport(not_compared=("output files: the replay wrote none",))
    return first, results.files(ports.repo, comparison, runs, ignore)


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


def _find_unpaired(comparison: Comparison, files: output_files.OutputReport) -> str | None:
    """Return a sentence on output files that were not compared because their pairs are unknown; None without one."""
    if comparison.original.by_session or not files.unpaired:
        return None
    return (
        "Files with random names, or that differ in numbered folders of several trainings or ranks, have no known "
        f"pair: {outputs.listed(files.unpaired)}"
    )


def _failed_otherwise(comparison: Comparison) -> bool:
    return comparison.original.message != comparison.replay.message


def _so_far(comparison: Comparison, unknown: str) -> str:
    end = f", up to step {comparison.original.last_step}" if comparison.original.by_steps else ""
    return f"everything that was compared is equal, bit for bit{end}. {unknown}"


def _limits(comparison: Comparison, files: output_files.OutputReport) -> str | None:
    """Return the reason if files differ in unjudged values, or if only files without tensors are equal; else None."""
    kinds = {"values that are not judged": files.clocks, "the run's path": files.places}
    parts = [
        f"{len(names)} file{' differs' if len(names) == 1 else 's differ'} in {values}: "
        f"{outputs.listed(names, most=_NAMED)}"
        for values, names in kinds.items()
        if names
    ]
    if _has_texts_alone(comparison, files):
        parts.insert(0, f"no tensors and no metrics were compared, only {outputs.listed(files.same)}")
    return "; ".join([f"{_equal(comparison)} equal in every bit", *parts]) if parts else None


def _has_texts_alone(comparison: Comparison, files: output_files.OutputReport) -> bool:
    return not (comparison.original.by_steps or files.has_tensors or comparison.equal["metrics"]) and bool(files.same)


def _equal(comparison: Comparison) -> str:
    """Return the name of the compared state at the end, or of the results if that state was not recorded."""
    if not comparison.original.by_session:
        return "every judged result"
    tensors = {
        name for states in comparison.original.states.values() for state in states.values() for name in state.tensors
    }
    return "weights and optimizer" if any(name.startswith("optim") for name in tensors) else "the recorded state"


def _beside(comparison: Comparison, files: output_files.OutputReport) -> tuple[str, ...]:
    """Return lines on output files: all that differ. They decide nothing where there are states."""
    differ = [f"differs: {difference.name}" for difference in files.differences]
    if differ and comparison.original.by_session:
        differ.append("the recorded steps and states decide the verdict; output files do not change it")
    return (*(outputs.listed(differ, "\n").split("\n") if differ else ()), *files.unjudged)


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
        return ["steps and state: the script does not use m5ws.session; only files and metrics could be compared"]
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
