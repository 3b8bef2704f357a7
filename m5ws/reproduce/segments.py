"""Segments of a run, and the joint verdict of their replays.

A replayed segment proves its steps, given the checkpoint it starts from. All segments together prove the run, because
each ends with the checkpoint that the next starts from, and that checkpoint is compared too.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

import msgspec

from m5ws.agent import untracked
from m5ws.errors import M5Error, UsageError
from m5ws.records.reasons import JointReason
from m5ws.records.run import Segment
from m5ws.records.verdict import EXIT_CODES, JointVerdict, Outcome, Verdict
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.reproduce.verdict.joint import joint_outcome, name_verdict
from m5ws.runs import history
from m5ws.tracking.interface import Tracker

_log = logging.getLogger(__name__)
_SHOWN = 12
T = TypeVar("T")


class JointResult(msgspec.Struct, frozen=True, kw_only=True):
    """The joint verdict on replays of `segments` out of `of` segments of a run, with `verdicts` in order of steps."""

    run: str
    outcome: Outcome
    segments: int
    of: int
    verdicts: tuple[Verdict, ...]
    reason: JointReason

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


def of_run(repo: Repository, run: str) -> list[Segment]:
    """Return a run's segments in order: between its checkpoints, from its first step to its last recorded one.

    Raises UsageError if the run recorded no steps.
    """
    done = history.load(repo, run)
    begin = runs.load(repo, run).begin
    if done.last_step <= begin:
        raise UsageError(
            f"run {run} has no segments: its script uses no session",
            hint="Its script does not use m5ws.session. `m5ws reproduce RUN` replays and compares the whole run.",
        )
    segments, first, name = [], begin, None
    for label in checkpoints.valid(repo, run):
        step = checkpoints.step_of(label)
        if first < step <= done.last_step:
            segments.append(_segment(repo, run, first, step, name))
            first, name = step, label
    if first < done.last_step:
        segments.append(_segment(repo, run, first, done.last_step, name))
    return segments


def covering(segments: Sequence[Segment], first: int, last: int) -> Segment:
    """Return the segment from the last checkpoint at or before step `first` to step `last`.

    Raises UsageError for steps that the run did not record.
    """
    end = segments[-1].last
    if not segments[0].first <= first < last <= end:
        raise UsageError(
            f"the run did not record steps {first + 1}-{last}", hint=f"It recorded steps {segments[0].first + 1}-{end}."
        )
    begin = next(segment for segment in reversed(segments) if segment.first <= first)
    return msgspec.structs.replace(begin, last=last)


def numbered(segments: Sequence[Segment], number: int) -> Segment:
    """Return the segment with a number, from 1. Raises UsageError with a list of the segments."""
    if not 1 <= number <= len(segments):
        listed = ", ".join(f"{place}: {segment}" for place, segment in enumerate(segments[:_SHOWN], 1))
        more = f", … ({len(segments)} in all)" if len(segments) > _SHOWN else ""
        raise UsageError(f"segment {number} does not exist", hint=f"The run's segments are {listed}{more}.")
    return segments[number - 1]


def sample(segments: Sequence[Segment], count: int, seed: int) -> list[Segment]:
    """Return `count` segments, drawn at random without repetition, in order of steps. Raises UsageError."""
    if count > len(segments):
        raise UsageError(
            f"cannot draw {count} segments: the run has {len(segments)}",
            hint="Draw fewer, or replay all with `--all-segments`.",
        )
    chosen = random.Random(seed).sample(range(len(segments)), count)
    return [segments[place] for place in sorted(chosen)]


def replay(
    segments: Sequence[Segment],
    replay_one: Callable[[Segment], T],
    parallel: int,
    told: Callable[[T], None],
    stop: Callable[[], None],
) -> list[T]:
    """Replay segments, `parallel` at a time, and return their results in order of steps.

    Each result is passed to `told` at once. If a replay fails, or the caller is interrupted, `stop` is called, and the
    running replays are waited for.
    """
    results: dict[int, T] = {}
    with ThreadPoolExecutor(parallel, thread_name_prefix="m5ws-segment") as pool:
        jobs = {pool.submit(replay_one, segment): segment.first for segment in segments}
        try:
            for job in as_completed(jobs):
                results[jobs[job]] = job.result()
                told(results[jobs[job]])
        except BaseException:
            stop()
            for job in jobs:
                job.cancel()
            raise
    return [results[first] for first in sorted(results)]


def join(run: str, verdicts: Sequence[Verdict], every: Sequence[Segment]) -> JointResult:
    """Return the joint verdict of replays of some of a run's segments, `every`.

    Stricter than `joint_outcome` in one point: a requested segment that was not compared is a failure.
    """
    outcome, reason = joint_outcome(verdicts, every)
    incomparable = next((verdict for verdict in verdicts if verdict.outcome == "not comparable"), None)
    if incomparable is not None and outcome not in ("diverged", "nondeterministic"):
        outcome, reason = incomparable.outcome, name_verdict(incomparable)
    elif outcome == "sampled" and len(verdicts) < len(every):
        drawn, of = len(verdicts), len(every)
        faults = max(1, round(of / 10))
        chance = 1 - math.comb(of - faults, drawn) / math.comb(of, drawn)
        reason = msgspec.structs.replace(reason, drawn=drawn, of=of, faults=faults, chance=chance)
    count, of = len(verdicts), len(every)
    return JointResult(run=run, outcome=outcome, segments=count, of=of, verdicts=tuple(verdicts), reason=reason)


def join_published(repo: Repository, run: str, every: Sequence[Segment]) -> JointResult:
    """Return the joint verdict of the newest published verdict on each segment: jobs replay shares of the segments.

    Each job publishes its verdicts first, and then reads. So the last job reads all.
    """
    newest = {each.segment: each for each in runs.verdicts(repo, run) if each.run == run and each.segment in every}
    return join(run, [newest[segment] for segment in every if segment in newest], every)


def record(joint: JointResult, every: Sequence[Segment]) -> JointVerdict:
    """Return the published record of `joint`, on a run with the segments `every`."""
    outcomes = {verdict.segment: verdict.outcome for verdict in joint.verdicts if verdict.segment is not None}
    verified = tuple(segment for segment in every if outcomes.get(segment) == "sampled")
    differ = tuple(segment for segment in every if outcomes.get(segment) in ("diverged", "nondeterministic"))
    return JointVerdict(
        run=joint.run,
        outcome=joint.outcome,
        reason=joint.reason,
        of=joint.of,
        verified=verified,
        differ=differ,
        open=tuple(segment for segment in every if segment not in (*verified, *differ)),
        replays=tuple(verdict.replay for verdict in joint.verdicts),
        created_s=time.time(),
    )


def publish(repo: Repository, tracker: Tracker | None, verdict: JointVerdict, home: Path) -> None:
    """Publish a joint verdict, and show it in the tracker. The verdicts of its segments are published before."""
    try:
        runs.publish_joint(repo, verdict)
        if tracker is not None:
            untracked.show_verdict(tracker, home, verdict.run)
    except (M5Error, OSError) as error:
        _log.warning("the joint verdict was not published everywhere; `m5ws attest` contains it: %s", error)


def _segment(repo: Repository, run: str, first: int, last: int, label: str | None) -> Segment:
    # The replay checks the digest before it starts, so a damaged checkpoint fails its own segment alone.
    digest = checkpoints.read(repo, run, label)[0] if label is not None else None
    return Segment(first=first, last=last, checkpoint=label, digest=digest)
