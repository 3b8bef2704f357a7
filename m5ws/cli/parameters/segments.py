"""Segments on the command line of `m5ws reproduce`: their selection, parallel replay and joint result."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click
import msgspec
from click.core import ParameterSource

from m5ws.cli.parameters.grouped import grouped
from m5ws.cli.terminal import interrupt, output, progress
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.agent.ports import Ports
    from m5ws.records.run import Segment
    from m5ws.records.verdict import Change, Verdict
    from m5ws.repository.repository import Repository
    from m5ws.reproduce.reproduce import ReplayRequest
    from m5ws.reproduce.segments import JointResult
    from m5ws.workspace import Workspace

T = TypeVar("T")
_WAYS = {"segment": "--segment", "steps": "--from/--to", "sample": "--sample", "all_segments": "--all-segments"}
_CHANGES = {"snapshot": "--snapshot", "overrides": "--set", "seed": "--seed", "nproc": "--nproc"}

parallel = click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="P",
    help="Number of parallel replays.",
)


options = grouped(
    click.option("--segment", type=click.IntRange(min=1), metavar="K", help="Replay only the Kth segment."),
    click.option(
        "--from",
        "first",
        type=click.IntRange(min=0),
        metavar="STEP",
        help="Replay from the checkpoint after this step.",
    ),
    click.option("--to", "last", type=click.IntRange(min=1), metavar="STEP", help="Replay up to this step."),
    click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Replay only N segments, chosen at random."),
    click.option("--sample-seed", type=int, default=0, show_default=True, metavar="N", help="Seed of that choice."),
    click.option("--all-segments", is_flag=True, help="Replay each segment as a run of its own."),
    click.option("--share", type=(int, int), hidden=True),
)


class SegmentArguments(TypedDict):
    """The values of `options`. `share` of a job is its number, from 1, and the number of jobs."""

    segment: int | None
    first: int | None
    last: int | None
    sample: int | None
    sample_seed: int
    all_segments: bool
    share: tuple[int, int] | None


def refuse_useless(context: click.Context) -> None:
    """Raise UsageError for options that contradict each other."""
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    ways = [_WAYS[name] for name in ("segment", "sample", "all_segments") if name in given]
    ways += [_WAYS["steps"]] if given & {"first", "last"} else []
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} cannot be combined: give one option")
    if ways and (changes := [_CHANGES[name] for name in _CHANGES if name in given]):
        raise UsageError(
            f"{' and '.join(changes)} cannot be combined with {ways[0]}: a segment starts from a checkpoint",
            hint="`m5ws fork RUN@STEP --set …` continues from a checkpoint with changes.",
        )


def select(repo: "Repository", run: str, given: SegmentArguments) -> "list[Segment]":
    """Return the selected segments of a run; none for the whole run. Raises UsageError."""
    from m5ws.reproduce import segments

    number, sample, first, last = given["segment"], given["sample"], given["first"], given["last"]
    if not given["all_segments"] and (number, sample, first, last) == (None,) * 4:
        return []
    recorded = segments.of_run(repo, run)
    if given["all_segments"]:
        number_of_share, shares = given["share"] or (1, 1)
        return recorded[number_of_share - 1 :: shares]
    if number is not None:
        return [segments.numbered(recorded, number)]
    if sample is not None:
        return segments.sample(recorded, sample, given["sample_seed"])
    first = first if first is not None else recorded[0].first
    return [segments.covering(recorded, first, last if last is not None else recorded[-1].last)]


def follow(
    parts: "Sequence[Segment]",
    replay_one: "Callable[[Segment], T]",
    parallel: int,
    stage: str,
    announce: "Callable[[T], None]",
    stop: Callable[[], None],
) -> "list[T]":
    """Return the results of segments, `parallel` at a time, under a bar. `announce` prints each. Ctrl-C stops them."""
    from m5ws.reproduce import segments

    done = 0

    def told(result: "T") -> None:
        nonlocal done
        announce(result)
        done += 1
        bar(stage, done, len(parts))

    with interrupt.on_signals(), progress.Bar() as bar:
        bar(stage, done, len(parts))
        return segments.replay(parts, replay_one, parallel, told, stop)


def replay(
    workspace: "Workspace", ports: "Ports", request: "ReplayRequest", wanted: "list[Segment]", parallel: int
) -> "JointResult":
    """Replay segments, each as a run of its own, and return their joint result.

    Ctrl-C stops them all. Raises ReplayInterrupted then, with the replays that have no verdict.
    """
    from m5ws.cli.terminal import explanation, verdict
    from m5ws.reproduce import reproduce, segments

    stopped = threading.Event()
    lock = threading.Lock()
    drifted: list[Change] = []
    begun: list[str] = []

    def announce(joint: "tuple[Change, ...]") -> None:
        with lock:
            if joint and not drifted:
                drifted.extend(joint)
                output.print_note(
                    "environment: drifted since the start of the original run (`m5ws reproduce RUN` lists how)"
                )

    def one(segment: "Segment") -> "Verdict":
        if stopped.is_set():
            raise reproduce.ReplayInterrupted("stopped before a verdict")
        part = msgspec.structs.replace(request, segment=segment)
        plan = reproduce.plan(ports, part, workspace.home, workspace.root)
        begun.append(plan.run.id)
        output.print_note(f"replaying {segment} of {request.original} as {plan.run.id}")
        watch = lambda *_: stopped.is_set()  # noqa: E731
        return reproduce.execute(
            ports, part, plan, announce, watch, on_recheck=verdict.print_recheck, on_side=explanation.print_side
        )

    def told(one: "Verdict") -> None:
        output.print_note(f"{one.segment}: {one.outcome}")
        begun.remove(one.replay)
        done.append(one.replay)

    done: list[str] = []
    every = segments.of_run(ports.repo, request.original)
    try:
        joint = follow(wanted, one, parallel, "replaying segments", told, stopped.set)
    except KeyboardInterrupt:
        left = f". Replays without a verdict are left: {', '.join(begun)}" if begun else ""
        raise reproduce.ReplayInterrupted(
            f"stopped after {len(done)} of {len(wanted)} segments, whose verdicts are published{left}"
        ) from None
    return segments.join(request.original, joint, every)


def several(
    workspace: "Workspace",
    ports: "Ports",
    request: "ReplayRequest",
    wanted: "list[Segment]",
    parallel: int,
    *,
    is_share: bool,
    as_json: bool,
) -> int:
    """Replay segments, print their joint result, and return the exit status. Shares of jobs are joined."""
    from m5ws.reproduce import segments

    joint = replay(workspace, ports, request, wanted, parallel)
    every = segments.of_run(ports.repo, request.original)
    if is_share:
        joint = segments.join_published(ports.repo, request.original, every)
    segments.publish(ports.repo, ports.tracker, segments.record(joint, every), workspace.home)
    output.print_json(joint) if as_json else output.echo(format_joint(joint))
    return joint.exit_code


def format_joint(joint: "JointResult") -> str:
    """Return a joint result for people: the result first, then each segment."""
    from m5ws.cli.terminal import verdict
    from m5ws.wording.sentences import describe

    lines = [
        f"{joint.outcome.upper()}: run {joint.run}, {joint.segments} of {joint.of} segments",
        f"  {describe(joint.reason)}",
        "",
    ]
    rows = [(str(each.segment), each.outcome, each.replay) for each in joint.verdicts]
    lines.append(output.table(("segment", "verdict", "replayed as"), rows))
    for each in joint.verdicts:
        if each.outcome not in ("sampled", "reproduced"):
            lines += ["", verdict.format_verdict(each)]
    return "\n".join(lines)
