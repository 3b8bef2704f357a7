"""The segments of a run, and what replays of several of them say together.

A replayed segment proves its steps given the checkpoint it starts from. All of them prove the run: each ends with the
checkpoint that the next one starts from, and that one is compared too.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec

from m5ws.checkpoints import resolve
from m5ws.errors import M5Error, UsageError
from m5ws.records.run import Segment
from m5ws.records.verdict import EXIT_CODES, JointVerdict, Outcome, Verdict
from m5ws.repository import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.reproduce.verdict.joint import joint_outcome
from m5ws.runs import history, recovery
from m5ws.tracking.interface import Tracker

_log = logging.getLogger(__name__)
_SHOWN = 12


class Joint(msgspec.Struct, frozen=True, kw_only=True):
    """What replays of `segments` of all `of` say of a run: `verdicts` in order of steps, and what that proves."""

    run: str
    outcome: Outcome
    segments: int
    of: int
    verdicts: tuple[Verdict, ...]
    reason: str

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


def of_run(repo: Repository, run: str) -> list[Segment]:
    """Return a run's segments, in order: between its checkpoints, from its first step to its last recorded one.

    Raises UsageError if it recorded no steps.
    """
    done = history.load(repo, run)
    begin = runs.load(repo, run).begin
    if done.last_step <= begin:
        raise UsageError(
            f"run {run} recorded no steps, so it has no segments",
            hint="Its script does not use m5ws.session. `m5ws reproduce RUN` replays and compares it whole.",
        )
    found, first, name = [], begin, None
    for label in checkpoints.valid(repo, run):
        step = checkpoints.step_of(label)
        if first < step <= done.last_step and resolve.holds_state(repo, run, label):
            found.append(_segment(repo, run, first, step, name))
            first, name = step, label
    if first < done.last_step:
        found.append(_segment(repo, run, first, done.last_step, name))
    return found


def covering(segments: Sequence[Segment], first: int, last: int) -> Segment:
    """Return what begins with the checkpoint at step `first`, or the one before, and goes on to step `last`.

    Raises UsageError for steps that the run did not do.
    """
    end = segments[-1].last
    if not segments[0].first <= first < last <= end:
        raise UsageError(
            f"steps {first + 1}-{last} are not among what the run did",
            hint=f"It did steps {segments[0].first + 1}-{end}.",
        )
    begin = next(one for one in reversed(segments) if one.first <= first)
    return msgspec.structs.replace(begin, last=last)


def numbered(segments: Sequence[Segment], number: int) -> Segment:
    """Return the segment of a number, from 1. Raises UsageError that lists those there are."""
    if not 1 <= number <= len(segments):
        listed = ", ".join(f"{place}: {one}" for place, one in enumerate(segments[:_SHOWN], 1))
        more = " …" if len(segments) > _SHOWN else ""
        raise UsageError(f"there is no segment {number}", hint=f"The run has {len(segments)} ({listed}{more}).")
    return segments[number - 1]


def sample(segments: Sequence[Segment], count: int, seed: int) -> list[Segment]:
    """Return `count` segments, drawn at random without repetition, in order of steps. Raises UsageError."""
    if count > len(segments):
        raise UsageError(f"there are {len(segments)} segments, fewer than {count}", hint="`--all-segments` takes all.")
    chosen = random.Random(seed).sample(range(len(segments)), count)
    return [segments[place] for place in sorted(chosen)]


def replay(
    segments: Sequence[Segment],
    one: Callable[[Segment], Verdict],
    parallel: int,
    told: Callable[[Verdict], None],
    stop: Callable[[], None],
) -> list[Verdict]:
    """Replay segments, `parallel` at a time, and return their verdicts in order of steps.

    `told` gets each at once. `stop` is called, and the replays under way are waited for, when one of them fails or the
    caller is interrupted.
    """
    verdicts: dict[int, Verdict] = {}
    with ThreadPoolExecutor(parallel, thread_name_prefix="m5ws-segment") as pool:
        jobs = {pool.submit(one, segment): segment.first for segment in segments}
        try:
            for job in as_completed(jobs):
                verdicts[jobs[job]] = job.result()
                told(verdicts[jobs[job]])
        except BaseException:
            stop()
            for job in jobs:
                job.cancel()
            raise
    return [verdicts[first] for first in sorted(verdicts)]


def join(run: str, verdicts: Sequence[Verdict], every: Sequence[Segment]) -> Joint:
    """Return the joint verdict of replays of some of a run's segments, `every`.

    It is stricter than `joint_outcome` in one point: a segment that was asked for and not compared counts as a failure.
    """
    outcome, reason = joint_outcome(verdicts, every)
    incomparable = next((verdict for verdict in verdicts if verdict.outcome == "not comparable"), None)
    if incomparable is not None and outcome not in ("diverged", "nondeterministic"):
        outcome, reason = incomparable.outcome, f"{incomparable.segment}: {incomparable.reason or incomparable.outcome}"
    elif outcome == "sampled" and len(verdicts) < len(every):
        reason = f"{reason}. {_chance(len(verdicts), len(every))}"
    count, of = len(verdicts), len(every)
    return Joint(run=run, outcome=outcome, segments=count, of=of, verdicts=tuple(verdicts), reason=reason)


def record(joint: Joint, every: Sequence[Segment]) -> JointVerdict:
    """Return what is published of `joint`, on a run that has the segments `every`."""
    found = {one.segment: one.outcome for one in joint.verdicts if one.segment is not None}
    verified = tuple(one for one in every if found.get(one) == "sampled")
    differ = tuple(one for one in every if found.get(one) in ("diverged", "nondeterministic"))
    return JointVerdict(
        run=joint.run,
        outcome=joint.outcome,
        reason=joint.reason,
        of=joint.of,
        verified=verified,
        differ=differ,
        open=tuple(one for one in every if one not in (*verified, *differ)),
        replays=tuple(one.replay for one in joint.verdicts),
        created_s=time.time(),
    )


def publish(repo: Repository, tracker: Tracker | None, found: JointVerdict, home: Path) -> None:
    """Publish what segments say together, and have the tracker show it; the segments' own verdicts are there before."""
    try:
        runs.publish_joint(repo, found)
        if tracker is not None:
            with recovery.telling(home / "runs" / found.run):
                tracker.write_joint(found)
    except (M5Error, OSError) as error:
        _log.warning("what the segments say together was not published everywhere; `m5ws attest` says it: %s", error)


def _chance(count: int, of: int) -> str:
    """Return a sentence on how likely a sample of `count` segments of `of` would have shown a fault."""
    bad = max(1, round(of / 10))
    seen = 1 - math.comb(of - bad, count) / math.comb(of, count)
    one, several = f"{count / of:.0%}", f"{seen:.0%}"
    return (
        f"These are {count} of {of} segments: a fault in one segment would have been seen with a chance of {one},"
        f" faults in {bad} of them with {several}"
    )


def _segment(repo: Repository, run: str, first: int, last: int, label: str | None) -> Segment:
    # The replay compares it with its event before it begins: damage concerns that segment alone.
    digest = checkpoints.read(repo, run, label)[0] if label is not None else None
    return Segment(first=first, last=last, checkpoint=label, digest=digest)
