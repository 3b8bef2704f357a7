"""Test of resumes of a script without a session: trainings that are interrupted, resumed, and compared.

A training is killed after an observed step, as by a crash, before the script can save a checkpoint of that step. Then
it is resumed as by `m5ws resume`: the output files are restored, and the script continues from its own
checkpoint. Its steps, state and output files are compared with the uninterrupted training.
"""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports, Watch
from m5ws.attempts import leader, planning
from m5ws.attempts.results import AttemptResult
from m5ws.errors import UsageError
from m5ws.records.reasons import Ended, Fact, Gap, Interruption, Reason
from m5ws.records.run import Run, Segment
from m5ws.records.verdict import Recheck, Verdict
from m5ws.reproduce import gaps, reproduce
from m5ws.reproduce.certify import Restore
from m5ws.reproduce.compare import compare_histories
from m5ws.reproduce.outputs.output_files import OutputRules
from m5ws.reproduce.verdict import judgement
from m5ws.runs import history
from m5ws.runs.history import History

_LIST_FOLDER = "Let the script save checkpoints, and list their folder in [run] outputs of m5ws.toml."


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The uninterrupted training to compare with, and the places of new attempts, as in `run.plan`.

    `rules` are for delivered results, `watch` follows the attempts.
    """

    ports: Ports
    whole: Run
    home: Path
    author_dir: Path
    rules: OutputRules = OutputRules()
    watch: Watch | None = None


def is_observed(ports: Ports, whole: Run) -> bool:
    """Return True if a training has observed steps, and no session."""
    return history.load(ports.repo, whole.id).observed


def choose(ports: Ports, whole: Run, count: int | None, seed: int) -> list[Segment]:
    """Return the segments after the interruptions: one late in the training, or `count` of them drawn by `seed`.

    Raises UsageError if the training is too short, or wrote no output files.
    """
    done = history.load(ports.repo, whole.id)
    if not done.outputs:
        raise UsageError(
            f"nothing to resume from: run {whole.id} wrote no checkpoint to [run] outputs", hint=_LIST_FOLDER
        )
    last = done.last_step
    if last < 2:
        raise UsageError(
            f"nothing to interrupt: run {whole.id} did {last} step",
            hint="Let the script train several steps, and save a checkpoint before the last of them.",
        )
    # Late, so that a checkpoint exists.
    steps = [max(1, last * 5 // 6)]
    if count is not None:
        steps = sorted(random.Random(seed).sample(range(1, last), min(count, last - 1)))
    return [Segment(first=step, last=last) for step in steps]


def interrupt(trial: Trial, step: int, announce: Callable[[str], None]) -> Restore:
    """Train again, interrupted after `step`, resume, and compare. A verdict is not published yet.

    `announce` is called with each attempt in words. Raises ReplayInterrupted if the user stops it.
    """
    ports, whole = trial.ports, trial.whole
    interrupted = planning.new_run(whole.snapshot, whole.spec, name=whole.name, reproduces=whole.id)
    first = _plan(trial, interrupted)
    context = msgspec.structs.replace(first.context, killed_after=step)
    first = msgspec.structs.replace(first, context=context)
    announce(f"training again as {interrupted.id}, interrupted after step {step}")
    result = _execute(trial, first)
    original, done = history.load(ports.repo, whole.id), history.load(ports.repo, interrupted.id)
    comparison = compare_histories(original, done)
    if comparison.first() is not None:
        verdict = judgement.judge(ports, interrupted, comparison, result, trial.rules)
        reasons = (Interruption(after=step, differs=True),)
        verdict = msgspec.structs.replace(verdict, outcome="nondeterministic", reasons=reasons)
        return Restore(after=step, resumed=None, verdict=verdict)
    if result.outcome != "failed" or done.last_step < step:
        ended = Ended(side="training", outcome=result.outcome, reason=result.reason)
        missed = Interruption(after=step, missed=True)
        return Restore(after=step, resumed=None, verdict=_not_comparable(interrupted, ended, missed))
    second = _plan(trial, interrupted)
    if not second.outputs:
        verdict = _not_comparable(interrupted, Interruption(after=step, resumed=0))
        return Restore(after=step, resumed=0, verdict=verdict)
    announce(f"resuming {interrupted.id}")
    result = _execute(trial, second)
    return _judge(trial, interrupted, original, result, step)


def _plan(trial: Trial, interrupted: Run) -> AttemptPlan:
    ports = trial.ports
    return planning.plan(
        ports.repo, interrupted, trial.home, trial.author_dir, ports.environment, ports.tracker, python=ports.python
    )


def _execute(trial: Trial, plan: AttemptPlan) -> AttemptResult:
    """Execute an attempt. Raises ReplayInterrupted if the user stops it."""
    result = leader.execute(trial.ports, plan, trial.watch)
    if result.outcome == "interrupted":
        raise reproduce.ReplayInterrupted(f"run {plan.run.id} was stopped before a verdict was known")
    return result


def _judge(trial: Trial, interrupted: Run, original: History, result: AttemptResult, step: int) -> Restore:
    """Return the verdict on a training that was resumed."""
    done = history.load(trial.ports.repo, interrupted.id)
    resumed = next((after for after, attempt in done.begun if attempt > 1), None)
    comparison = compare_histories(original, done)
    verdict = judgement.judge(trial.ports, interrupted, comparison, result, trial.rules)
    outcome = verdict.outcome
    reasons: tuple[Reason, ...] = (Interruption(after=step, resumed=resumed),)
    if resumed == 0:
        outcome = "not comparable"
    elif verdict.first is None:
        reasons = (*reasons, *verdict.reasons)
    if outcome == "sampled" and (verdict.unsure or any(gaps.doubts(comparison))):
        outcome = "not comparable"
    verdict = msgspec.structs.replace(verdict, outcome=outcome, reasons=reasons)
    return Restore(after=step, resumed=resumed, verdict=verdict)


def _not_comparable(interrupted: Run, *reasons: Reason) -> Verdict:
    return Verdict(
        run=interrupted.reproduces or "",
        replay=interrupted.id,
        outcome="not comparable",
        not_compared=(Gap(kind="nothing resumed"),),
        observed=True,
        reasons=reasons,
        created_s=interrupted.created_s,
    )


def is_unsure(restore: Restore) -> bool:
    """Return True if only an uninterrupted replay shows whether the resume is the cause of a difference."""
    return restore.verdict.outcome == "diverged"


def judge_repetition(restore: Restore, repeated: Verdict) -> Restore:
    """Return the resume with the verdict after `repeated`, the verdict on an uninterrupted replay."""
    verdict = restore.verdict
    if not is_unsure(restore):
        return restore
    equal = {"reproduced": True, "diverged": False, "nondeterministic": False}.get(repeated.outcome)
    outcome = verdict.outcome if equal is None else "not comparable" if equal else repeated.outcome
    recheck = Recheck(start=repeated.replay, start_equal=equal)
    reasons = (*verdict.reasons, Fact(kind="recheck"))
    verdict = msgspec.structs.replace(verdict, outcome=outcome, reasons=reasons, recheck=recheck)
    return msgspec.structs.replace(restore, verdict=verdict)
