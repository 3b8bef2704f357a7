"""`reproduce`: do a run again and say, with evidence, whether it is the same bit for bit.

*reproduced* is said only when the replay ended well, state was compared, nothing that the original recorded
is missing from the replay, and every compared quantity is equal (promise 8).
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from m5ws.comparisons import Change, Divergence, Verdict
from m5ws.errors import M5Error, UsageError
from m5ws.events import AnyEvent, AttemptStarted
from m5ws.operations import diff, drift, history, leftovers, overrides, reason, run, supervise
from m5ws.operations.compare import Comparison
from m5ws.ports import Progress
from m5ws.records import LaunchSpec, Observed, Run, Segment
from m5ws.repository import Repository, checkpoints, ledger, runs, trees
from m5ws.repository.ledger import LAUNCHER

_NOTHING = (
    "the original recorded nothing that could be compared: its script neither uses m5ws.session, nor logs metrics, nor "
    "writes to a folder that [run] outputs names"
)
_log = logging.getLogger(__name__)


class Interrupted(M5Error):
    """Somebody stopped a replay: nothing is said of the original."""

    exit_code = 130
    hint = "Ask again: a replay always starts from the beginning."


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to do again, and with what changed: the whole run, or a segment of it, which nothing may change.

    `env` is what to do when the environment could change bits.
    """

    original: str
    env: Literal["fail", "warn", "ignore"] = "fail"
    snapshot: str | None = None
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    nproc: int | None = None
    segment: Segment | None = None


Announce = Callable[[tuple[Change, ...]], None]
"""Called with the drift of the environment, before anything is spent."""


def plan(ports: supervise.Ports, request: Request, home: Path, author_dir: Path) -> run.Plan:
    """Return the replay, ready to be executed. Raises UsageError if the original recorded nothing to compare with."""
    original = runs.load(ports.repo, request.original)
    if not ledger.attempts(ports.repo, original.id):
        raise UsageError(f"run {original.id} has not started: there is nothing to compare with")
    snapshot = request.snapshot or original.snapshot
    if request.overrides:
        snapshot = overrides.derive(ports.repo, snapshot, request.overrides)
    parent = original.parent
    if parent is not None and snapshot != original.snapshot:
        # What was changed here is to show, as it would in a fork that was made so.
        parent = msgspec.structs.replace(parent, settings="script")
    spec = _spec(original.spec, request)
    replay = msgspec.structs.replace(
        run.new_run(snapshot, spec, name=original.name, reproduces=original.id, parent=parent), segment=request.segment
    )
    saved = sorted({checkpoints.step_of(label) for label in checkpoints.valid(ports.repo, original.id)})
    return run.plan(ports.repo, replay, home, author_dir, ports.environment, ports.tracker, checkpoint_at=tuple(saved))


def execute(
    ports: supervise.Ports,
    request: Request,
    planned: run.Plan,
    announce: Announce,
    watch: supervise.Watch | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Replay, compare as the ledger grows, stop at the first divergence; return and publish the verdict."""
    home = planned.directory.parent.parent.parent
    drifted = environment_drift(ports, request, planned)
    announce(drifted)
    if request.env == "fail" and drift.worst(drifted) in ("can", "does"):
        return _publish(ports, home, _refused(ports, planned, drifted))
    original = history.load(ports.repo, request.original)
    if request.segment is not None:
        original = original.within(request.segment.first, request.segment.last)
    comparison = Comparison(original)

    def feed(rank: str, event: AnyEvent) -> bool:
        comparison.feed(rank, event)
        if watch:
            watch(rank, event)
        return comparison.settled() or comparison.exhausted()

    result = supervise.execute(ports, planned, feed, progress)
    if result.outcome == "interrupted" and not (comparison.settled() or comparison.exhausted()):
        raise Interrupted(f"replay {planned.run.id} was stopped before there was a verdict")
    return _publish(ports, home, judge(ports, planned.run, comparison, result))


def environment_drift(ports: supervise.Ports, request: Request, planned: run.Plan) -> tuple[Change, ...]:
    """Return how this environment differs from the one the original began in, under the original's settings."""
    original = runs.load(ports.repo, request.original)
    unchanged = run.plan(
        ports.repo,
        msgspec.structs.replace(planned.run, snapshot=original.snapshot, spec=original.spec),
        planned.directory.parent.parent.parent,
        Path(planned.context.author_dir),
        ports.environment,
        ports.tracker,
    )
    observed = ports.observer.observe(supervise.rank_variables(ports, unchanged))
    return drift.drift(_pinned(ports.repo, original.id), observed)


def judge(ports: supervise.Ports, replay: Run, comparison: Comparison, result: supervise.Result) -> Verdict:
    """Return the verdict on a replay that has ended. Reads; publishes nothing."""
    assert replay.reproduces is not None
    first = comparison.first()
    missing = list(comparison.missing())
    if not _uses_session(comparison):
        # A checkpoint of files is all there is, and what differs in it can be named.
        first = _first_output(ports.repo, comparison) or first or _metrics(ports, replay, comparison)
    changes = diff.between_runs(ports.repo, replay.reproduces, replay.id)
    outcome, why = _outcome(comparison, result, first, missing)
    return Verdict(
        run=replay.reproduces,
        replay=replay.id,
        outcome="sampled" if outcome == "reproduced" and replay.segment is not None else outcome,
        segment=replay.segment,
        compared=dict(comparison.equal),
        not_compared=(*missing, *comparison.extra(), *_given(replay), *_unrecorded(comparison, replay)),
        first=first,
        changes=changes,
        reason=why or (reason.reason(first, changes) if first else None),
        created_s=time.time(),
    )


def _outcome(
    comparison: Comparison, result: supervise.Result, first: Divergence | None, missing: list[str]
) -> tuple[Literal["reproduced", "diverged", "not comparable"], str | None]:
    if first is not None:
        inexact = next((notice for notice in comparison.original.notices if notice.kind == "inexact-resume"), None)
        return ("diverged", f"the original itself: {inexact.message}" if inexact else None)
    if result.outcome != "finished" and not comparison.exhausted():
        return ("not comparable", f"the replay {result.outcome}: {result.message or f'status {result.exit_code}'}")
    if missing:
        return "not comparable", "the replay did not record all that the original did"
    if _uses_session(comparison) and not comparison.state_compared():
        return "not comparable", "the last recorded state was not compared: equal losses alone prove little"
    if not comparison.equal:
        return "not comparable", _NOTHING
    return "reproduced", None


def _uses_session(comparison: Comparison) -> bool:
    return bool(comparison.original.steps or comparison.original.states)


def _given(replay: Run) -> list[str]:
    """Return what a replay of a segment, or of a fork, takes for granted: the checkpoint that it starts from."""
    segment, parent = replay.segment, replay.parent
    if segment is not None and segment.digest is not None:
        return [f"steps up to {segment.first}: given, by checkpoint {segment.checkpoint} ({segment.digest[:12]})"]
    if parent is None:
        return []
    return [f"steps up to {parent.step}: given, by checkpoint {parent.name} ({parent.digest[:12]}), as to the original"]


def _unrecorded(comparison: Comparison, replay: Run) -> list[str]:
    """Return what neither side recorded, so that nobody takes it for verified."""
    if not _uses_session(comparison):
        return ["steps and state: the script does not use m5ws.session; only files and metrics could be compared"]
    lines = [
        f"{kind}: none were recorded" for kind in ("quantities", "batches", "generators") if not comparison.equal[kind]
    ]
    last = comparison.original.last_step
    begin = (
        replay.segment.first if replay.segment is not None else replay.parent.step if replay.parent is not None else 0
    )
    done = last - begin
    between = done - len([step for step in comparison.original.states.get(0, {}) if step])
    if between > 0:
        lines.append(f"state after {between} of {done} steps, where no fingerprint was asked for")
    if comparison.original.outcome != "finished":
        lines.append(f"the original ended {comparison.original.outcome or 'unrecorded'} after step {last}")
    return lines


def _first_output(repo: Repository, comparison: Comparison) -> Divergence | None:
    """Return the first output file that differs, for scripts that recorded no steps."""
    from m5ws.records import Content

    for step, content in comparison.original.contents.items():
        old = repo.objects.get_record(content, Content).tree
        new_content = comparison.replay.contents.get(step)
        new = repo.objects.get_record(new_content, Content).tree if new_content else None
        before = {entry.name: entry.digest for entry in trees.load(repo.objects, old).entries} if old else {}
        after = {entry.name: entry.digest for entry in trees.load(repo.objects, new).entries} if new else {}
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                return Divergence(
                    step=step, rank=0, quantity=f"file {name}", original=before.get(name), replayed=after.get(name)
                )
            comparison.equal["files"] += 1
    return None


def _metrics(ports: supervise.Ports, replay: Run, comparison: Comparison) -> Divergence | None:
    """Return the first metric that the script logged itself and that differs."""
    if ports.tracker is None or replay.reproduces is None:
        return None
    before = ports.tracker.script_metrics(replay.reproduces)
    after = ports.tracker.script_metrics(replay.id)
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = _by_step(before.get(name, [])), _by_step(after.get(name, []))
        for step in sorted(old.keys() | new.keys()):
            if old.get(step) != new.get(step):
                found.append((step, name, old.get(step), new.get(step)))
            else:
                comparison.equal["metrics"] += 1
    if not found:
        return None
    step, name, first_old, first_new = min(found, key=lambda row: row[:2])
    return Divergence(step=step, rank=0, quantity=f"metric {name}", original=first_old, replayed=first_new)


def _by_step(points: list[tuple[int, str]]) -> dict[int, str]:
    """Return all of a metric's values at each step as one text: without a step, every value is at step 0."""
    found: dict[int, list[str]] = {}
    for step, value in points:
        found.setdefault(step, []).append(value)
    return {step: " ".join(sorted(values)) for step, values in found.items()}


def _refused(ports: supervise.Ports, planned: run.Plan, drifted: tuple[Change, ...]) -> Verdict:
    """Return the verdict on a replay that was not begun, because its environment cannot give the same bits."""
    runs.publish(ports.repo, planned.run)
    grave = [change for change in drifted if change.rating != "cannot"]
    return Verdict(
        run=planned.run.reproduces or "",
        replay=planned.run.id,
        outcome="not comparable",
        not_compared=("everything: nothing was run",),
        changes=drifted,
        reason=f"the environment differs: {'; '.join(map(drift.title, grave[:5]))}",
        created_s=time.time(),
    )


def _publish(ports: supervise.Ports, home: Path, verdict: Verdict) -> Verdict:
    try:
        runs.publish_verdict(ports.repo, verdict)
    except (M5Error, OSError) as error:
        _log.warning("the store does not take the verdict; it is kept and delivered later: %s", error)
        leftovers.keep_verdict(home, verdict)
    if ports.tracker is not None:
        try:
            ports.tracker.write_verdict(verdict)
        except (M5Error, OSError):
            # The verdict is in the store; the tracker is a follower and can be told again.
            return verdict
    return verdict


def _spec(spec: LaunchSpec, request: Request) -> LaunchSpec:
    return msgspec.structs.replace(
        spec,
        seed=request.seed if request.seed is not None else spec.seed,
        nproc=request.nproc if request.nproc is not None else spec.nproc,
    )


def _pinned(repo: Repository, run_id: str) -> Observed:
    """Return the environment that the run's first attempt observed."""
    first = ledger.attempts(repo, run_id)[0]
    for event in ledger.events(repo, run_id, first, LAUNCHER):
        if isinstance(event, AttemptStarted):
            return repo.objects.get_record(event.observed, Observed)
    raise UsageError(f"attempt {first} of run {run_id} recorded no environment")
