"""`m5ws reproduce`."""

from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from m5ws.cli import environment
from m5ws.cli.parameters import names, segments
from m5ws.cli.terminal import interrupt, output
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import NotFound
from m5ws.records.verdict import Change

if TYPE_CHECKING:
    from m5ws.reproduce.reproduce import Request
    from m5ws.runs.supervise import Ports
    from m5ws.workspace import Workspace


class _Given(segments.Given):
    """The values of the options that say what is replayed, and how."""

    snapshot: str | None
    overrides: tuple[str, ...]
    seed: int | None
    nproc: int | None
    keep_going: bool
    no_recheck: bool
    tolerance: float | None
    explain: bool


@click.command("reproduce")
@click.argument("run", type=names.Id(("run",)))
@environment.option
@click.option("--snapshot", type=names.Id(("snapshot",)), metavar="ID", help="Take the inputs from another snapshot.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a config key; may be repeated.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Another seed.")
@click.option("--nproc", type=click.IntRange(min=1), metavar="N", help="Another number of processes.")
@segments.options
@click.option(
    "--parallel", type=click.IntRange(min=1), default=1, show_default=True, metavar="P", help="Segments at a time."
)
@click.option("--keep-going", is_flag=True, help="Go on after a divergence, and count the steps that differ.")
@click.option("--no-recheck", is_flag=True, help="Do not replay once more what diverged.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="REL",
    help="Go on after a divergence, and ask whether all recorded values lie this close.",
)
@click.option("--explain", is_flag=True, help="Do the steps where it diverged again, and look inside them.")
@click.option("--no-progress", is_flag=True, help="Print no steps.")
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    run: str,
    env: tuple[str, ...],
    parallel: int,
    no_progress: bool,
    as_json: bool,
    **given: Unpack[_Given],
) -> None:
    """Do a run again, and prove it is the same bit for bit.

    RUN is an id or a unique prefix of one, an MLflow run id, or the URL of its page. What drifted in the
    environment is said first, before anything is spent. Then the same launch is done again from the same
    snapshot, and compared as it goes: losses, batches, state and checkpoints, in bits. The first divergence
    stops it, and is named with its step, rank, quantity and tensor. With options that change something, the
    verdict shows what that changes.

    A replay that diverges though nothing was changed is done once more, up to the step that differs, before
    anything is said: two replays that differ from each other mean that the run is nondeterministic; two that agree
    put the original under suspicion.

    A segment is what lies between two checkpoints: it is restored from the first and replayed to the second, so that
    a part of a run, or many parts side by side, can be verified. All segments together verify the run.

    With --env rebuild the replay runs in the original's environment, made again: a virtual environment of the very
    distributions that were installed, or the container image that the snapshot pins.

    On other hardware bits cannot be equal, unless the determinism level is "portable". With --tolerance such a
    replay is *consistent* if no recorded value differs by more, relative to the larger of the two; it is never called
    the same.

    With --explain, the steps around the first difference are replayed from the last checkpoint before them: as it
    was, once more so, and under the original's conditions if something was changed. The first module, backward
    operation or gradient that differs is named, with a cause if the evidence has one.

    Exit status: 0 reproduced, sampled or consistent, 1 diverged or nondeterministic, 2 not comparable, 3 something it
    needs is missing.

    \b
    Examples:
      m5ws reproduce 7c1d
      m5ws reproduce 7c1d --set optimizer.lr=1e-4
      m5ws reproduce 7c1d --env warn --explain
      m5ws reproduce 7c1d --env rebuild
      m5ws reproduce 7c1d --env warn --tolerance 1e-3
      m5ws reproduce 7c1d --segment 3
      m5ws reproduce 7c1d --all-segments --parallel 4
    """
    segments.refuse_useless(context)
    policy = environment.policy(env)
    here = names.workspace(context)
    ports = here.ports(names.settled(here))
    request = _request(ports, run, policy, given, here.settings.run.ignore)
    wanted = msgspec.convert(given, segments.Wanted)
    chosen = wanted.of(ports.repo, request.original)
    ports = environment.ports(here, ports, env, request.original, request.snapshot)
    if wanted.many:
        context.exit(segments.several(here, ports, request, chosen, parallel, as_json=as_json))
    request = msgspec.structs.replace(request, segment=chosen[0] if chosen else None)
    context.exit(_one(here, ports, request, progress=not no_progress, as_json=as_json))


def _request(ports: "Ports", run: str, policy: environment.Policy, given: _Given, ignore: tuple[str, ...]) -> "Request":
    """Return what is asked for, but for segments. Raises NotFound, AmbiguousId."""
    from m5ws.reproduce import reproduce

    snapshot = given["snapshot"]
    return reproduce.Request(
        original=_original(ports, run),
        env=policy,
        snapshot=names.found(ports.repo, snapshot, "snapshot") if snapshot else None,
        overrides=given["overrides"],
        seed=given["seed"],
        nproc=given["nproc"],
        keep_going=given["keep_going"],
        recheck=not given["no_recheck"],
        tolerance=given["tolerance"],
        explain=given["explain"],
        ignore=ignore,
    )


def _one(here: "Workspace", ports: "Ports", request: "Request", *, progress: bool, as_json: bool) -> int:
    """Replay a run or a segment of it, print the verdict, and return the exit status."""
    from m5ws.cli.terminal import explanation, verdict
    from m5ws.environment import drift
    from m5ws.reproduce import reproduce

    drifted: list[Change] = []

    def announce(found: tuple[Change, ...]) -> None:
        drifted.extend(found)
        environment.announce(found)
        output.note(f"hardware: {reproduce.expectation_of(ports, plan, found).why}")

    plan = reproduce.plan(ports, request, here.home, here.root)
    output.note(f"replaying {request.original} as {plan.run.id}")
    with interrupt.on_signals(), RunProgress(enabled=progress) as shown:
        found = reproduce.execute(
            ports, request, plan, announce, shown.watch, shown.prepare, verdict.again, explanation.told
        )
    output.print_json(found) if as_json else output.echo(verdict.text(found))
    if request.env == "fail" and drift.worst(drifted) in ("can", "does"):
        output.note("hint: `--env warn` runs it all the same; `--env rebuild` makes the original's environment again.")
        if found.expected is not None and not found.expected.equal:
            output.note("hint: `--env warn --tolerance REL` compares trajectories where bits cannot be equal.")
    return found.exit_code


def _original(ports: "Ports", name: str) -> str:
    """Return the run that `name` stands for: an id's prefix, or the tracker's name for it. Raises NotFound."""
    try:
        return names.found(ports.repo, name, "run")
    except NotFound:
        found = ports.tracker.resolve(name) if ports.tracker is not None else None
        if found is None:
            raise
        return found
