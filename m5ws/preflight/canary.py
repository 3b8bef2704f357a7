"""Canaries: the first steps of the user's own job, run again and again, and compared with the first good result.

A change of the environment (a driver, a library) stays in one kind, so that its effect on bits shows. Other hardware
and another launch are another kind, with a reference of its own.
"""

import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import blake3
import msgspec

from m5ws.agent.ports import Ports, Watch
from m5ws.attempts import leader, planning, removal
from m5ws.attempts.repeated_steps import values
from m5ws.attempts.results import AttemptResult
from m5ws.environment import attempt_environments
from m5ws.environment.observe import hardware
from m5ws.errors import M5Error
from m5ws.progress import Progress
from m5ws.records.canary import Canary
from m5ws.records.ledger import AnyEvent, Observation, Step
from m5ws.records.reasons import Ended
from m5ws.records.run import LaunchSpec, Run, Segment
from m5ws.records.verdict import Change
from m5ws.repository.references import canaries
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import compare_histories
from m5ws.runs import history
from m5ws.runs.history import History
from m5ws.wording.comparisons import describe_ended, label

_log = logging.getLogger(__name__)
NAME = "canary"
"""Display name of the runs of canaries."""
_FACTS = ("cpu.model", "cpu.flags", "gpu.model", "gpu.count")


def _limit(steps: int, watch: Watch) -> Watch:
    """Return a watch that stops an observed script after a number of steps, which a session ends by itself."""
    is_observed = False

    def look(rank: str, event: AnyEvent) -> bool:
        nonlocal is_observed
        watch(rank, event)
        is_observed = is_observed or isinstance(event, Observation)
        # In the step after the limit, all ranks have done the last step.
        return is_observed and isinstance(event, Step) and event.step > steps

    return look


def new_run(snapshot: str, launch: LaunchSpec, steps: int) -> Run:
    """Return a run of the first steps of a job."""
    made = planning.new_run(snapshot, launch, name=NAME)
    return msgspec.structs.replace(made, segment=Segment(first=0, last=steps))


def execute(ports: Ports, run: Run, home: Path, author_dir: Path, watch: Watch, progress: Progress) -> Canary:
    """Train a run of `new_run`, compare it with the reference, and return the published result.

    `home` and `author_dir` are as of `planning.plan`. The run of the last good result is removed if this result is
    good. Raises KeyboardInterrupt.
    """
    assert run.segment is not None
    repo, steps = ports.repo, run.segment.last
    observed = {**hardware.cpu(Path("/")), **hardware.gpu(Path("/"))}
    facts = {name: observed[name] for name in _FACTS if name in observed}
    kind = _kind(run.spec, steps, facts)
    earlier = [each for each in canaries.of_snapshot(repo, run.snapshot) if each.kind == kind]
    result = Canary(
        snapshot=run.snapshot, kind=kind, facts=facts, outcome="failed", host=socket.gethostname(), steps=steps,
        created_s=repo.store.now(),
    )  # fmt: skip
    try:
        plan = planning.plan(repo, run, home, author_dir, ports.environment, None, python=ports.python)
        untracked = msgspec.structs.replace(ports, tracker=None)
        done = leader.execute(untracked, plan, _limit(steps, watch), progress)
    except (M5Error, OSError) as error:
        return canaries.publish(repo, msgspec.structs.replace(result, detail=str(error)))
    if done.asked:
        raise KeyboardInterrupt
    result = canaries.publish(repo, _judged(repo, msgspec.structs.replace(result, run=run.id), done, earlier))
    if result.outcome == "ok":
        _forget_last(repo, earlier)
    return result


def _kind(launch: LaunchSpec, steps: int, facts: hardware.Facts) -> str:
    """Return the name of a job on a kind of hardware."""
    parts = (msgspec.json.encode(launch, order="sorted"), steps, sorted(facts.items()))
    return blake3.blake3(msgspec.json.encode(parts)).hexdigest()[:32]


def _judged(repo: Repository, result: Canary, done: AttemptResult, earlier: Sequence[Canary]) -> Canary:
    """Return the result of a run that has ended, with its outcome."""
    assert result.run is not None
    steps = history.load(repo, result.run).within(0, result.steps)
    is_stopped = done.reason is not None and done.reason.kind == "enough steps"
    if done.outcome != "finished" and not is_stopped:
        detail = describe_ended(Ended(side="training", outcome=done.outcome, reason=done.reason))
        return msgspec.structs.replace(result, detail=detail)
    if not steps.by_steps:
        return msgspec.structs.replace(result, detail="m5ws recorded no training step")
    result = msgspec.structs.replace(result, digest=digest_of(steps))
    reference = next((each for each in earlier if each.outcome == "ok"), None)
    if reference is None or reference.digest == result.digest:
        return msgspec.structs.replace(result, outcome="ok", detail="" if reference else "the reference of this kind")
    return msgspec.structs.replace(result, outcome="diverged", detail=_difference(repo, reference, steps))


def digest_of(done: History) -> str:
    """Return a digest of all compared values of the steps of a run, and of the states after them."""
    steps = [(rank, number, values(each[number])) for rank, each in sorted(done.steps.items()) for number in each]
    states = [
        (rank, number, each[number].tensors, each[number].generators)
        for rank, each in sorted(done.states.items())
        for number in each
    ]
    return blake3.blake3(msgspec.json.encode((steps, states), order="sorted")).hexdigest()


def _difference(repo: Repository, reference: Canary, steps: History) -> str:
    """Return the first difference from the reference in words."""
    text = f"other bits than on {reference.host}, run {reference.run}"
    try:
        first = compare_histories(history.load(repo, reference.run or "").within(0, reference.steps), steps).first()
    except (M5Error, OSError) as error:
        return f"{text}: {error}"
    return text if first is None else f"{text}: step {first.step}, rank {first.rank}, {label(first)}"


def _forget_last(repo: Repository, earlier: Sequence[Canary]) -> None:
    """Remove the run of the last good result, unless the result is the reference: good runs would fill `m5ws ls`."""
    good = [each for each in earlier if each.outcome == "ok"]
    if len(good) < 2 or good[-1].run is None:
        return
    try:
        removal.remove(repo, removal.plan(repo, [good[-1].run]), NAME)
    except (M5Error, OSError) as error:
        _log.warning("the run %s of an earlier canary stays: %s", good[-1].run, error)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The last good and the first bad result of a kind, and the changes of the environment between them."""

    good: Canary
    bad: Canary
    changes: tuple[Change, ...]


def turns(repo: Repository, results: Sequence[Canary]) -> Iterator[Turn]:
    """Yield the turns from good to bad among results, oldest first. Raises CorruptObject."""
    last: dict[str, Canary] = {}
    for result in results:
        before = last.get(result.kind)
        if before is not None and before.outcome == "ok" and result.outcome != "ok":
            yield Turn(good=before, bad=result, changes=_changes(repo, before, result))
        last[result.kind] = result


def _changes(repo: Repository, good: Canary, bad: Canary) -> tuple[Change, ...]:
    """Return the drift of the environment between two results; none if a run did not begin or cannot be read."""
    if good.run is None or bad.run is None:
        return ()
    try:
        return attempt_environments.between_runs(repo, good.run, bad.run)
    except (M5Error, OSError) as error:
        _log.warning("the environments of runs %s and %s cannot be compared: %s", good.run, bad.run, error)
        return ()
