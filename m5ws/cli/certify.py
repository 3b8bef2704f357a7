"""`m5ws certify`."""

import threading
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from m5ws.cli.parameters import cluster_options, launch_options, names, new_run, segments
from m5ws.cli.parameters.script import ScriptCommand, script
from m5ws.cli.snapshot import take
from m5ws.cli.terminal import interrupt, output, verdict
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import M5Error
from m5ws.records.certificate import find_outcome
from m5ws.records.reasons import Ended
from m5ws.records.run import Segment, Trainer
from m5ws.wording.comparisons import describe_ended
from m5ws.wording.sentences import describe

if TYPE_CHECKING:
    from m5ws.agent.ports import Ports
    from m5ws.records.certificate import Certificate
    from m5ws.records.run import Run
    from m5ws.records.verdict import Verdict
    from m5ws.reproduce.certify import Restore
    from m5ws.reproduce.interruptions import Trial
    from m5ws.reproduce.reproduce import ReplayRequest
    from m5ws.workspace import Workspace


class NothingToCertify(M5Error):
    """The uninterrupted training did not finish, so restores cannot be compared with it."""

    exit_code = 3


@click.command("certify", cls=ScriptCommand)
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@launch_options.trainer
@new_run.of_job(10, 2, "Number of steps to train with m5ws.session.")
@click.option(
    "--restores",
    type=click.IntRange(min=1),
    metavar="N",
    help="Test N restores, chosen at random (default: all, or 1 without m5ws.session).",
)
@click.option("--sample-seed", type=int, default=0, show_default=True, metavar="N", help="Seed of that choice.")
@segments.parallel
@cluster_options.command_on
@click.option("--no-progress", is_flag=True, help="Do not print steps.")
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    snapshot: str | None,
    overrides: tuple[str, ...],
    trainer: Trainer | None,
    nproc: int | None,
    steps: int,
    restores: int | None,
    sample_seed: int,
    parallel: int,
    on: str | None,
    no_progress: bool,
    as_json: bool,
) -> None:
    """Test that resuming from a checkpoint gives the same bits as uninterrupted training.

    COMMAND is a script and its arguments (default: `[run] command` in m5ws.toml). It trains for a few steps with a
    checkpoint after each. Then it is restored from each checkpoint, or from --restores of them, and trained to the last
    step. The results are compared bit for bit with the uninterrupted training. The result holds for this script with
    its framework, optimizer and versions, which are listed.

    A script without m5ws.session trains to its own end. Then it trains again, is killed late in the training or after
    --restores steps chosen at random, and is resumed as by `m5ws resume`. Its observed steps and its output files
    are compared. Let it train few steps by its arguments or --set, and save checkpoints among them.

    Exit status: 0 all restores are equal, 1 one differs, 2 one could not be compared or nothing was resumed, 3 the
    training did not finish.

    \b
    Examples:
      m5ws certify
      m5ws certify --trainer deepspeed --set zero_stage=3 --steps 20 --parallel 2
      m5ws certify train.py --max-steps 20 --save-steps 5
    """
    from m5ws.attempts import planning as runs
    from m5ws.reproduce import certify

    workspace = names.workspace(context)
    repo = workspace.open_repository(create=True)
    if on is not None:
        pinned = (
            names.find_id(repo, snapshot, "snapshot") if snapshot else take(workspace, repo, None, observe=False).id
        )
        taken = () if snapshot else (pinned,)
        cluster_options.submit_command(context, workspace, repo, pinned, on, taken, as_json=as_json)
        return
    options = runs.RunOptions(command=script(context), trainer=trainer, nproc=nproc)
    launch = runs.spec(workspace.settings.run, new_run.with_import_path(workspace, options))
    pinned, launch = new_run.pin(workspace, repo, snapshot, launch, overrides)
    whole = certify.training(pinned, launch, steps)
    ports = workspace.ports(repo)
    joint = test(context, workspace, ports, whole, restores, sample_seed, parallel, progress=not no_progress)
    output.print_json(joint) if as_json else output.echo(format_certificate(joint))
    context.exit(joint.exit_code)


def test(
    context: click.Context,
    workspace: "Workspace",
    ports: "Ports",
    whole: "Run",
    restores: int | None,
    sample_seed: int,
    parallel: int,
    *,
    progress: bool,
) -> "Certificate":
    """Train a run without an interruption, test restores of it, and return the certificate."""
    from m5ws.reproduce import interruptions, reproduce

    has_steps = context.get_parameter_source("steps") is ParameterSource.COMMANDLINE
    try:
        train(workspace, ports, whole, progress=progress)
        if has_steps and interruptions.is_observed(ports, whole):
            output.print_note("--steps has no effect: the script does not use m5ws.session, and trains to its own end")
        return _certify(workspace, ports, whole, restores, sample_seed, parallel)
    except (KeyboardInterrupt, reproduce.ReplayInterrupted):
        raise _interrupted(ports, whole) from None


def _certify(
    workspace: "Workspace", ports: "Ports", whole: "Run", count: int | None, seed: int, parallel: int
) -> "Certificate":
    """Restore or interrupt the training `count` times, compare, and return the certificate. Ctrl-C stops it."""
    from m5ws.reproduce import certify, interruptions, reproduce

    named = workspace.settings.run.results
    request = reproduce.ReplayRequest(original=whole.id, env="ignore", results=named)
    if interruptions.is_observed(ports, whole):
        parts = interruptions.choose(ports, whole, count, seed)
        interrupted = _interrupt(workspace, ports, request, parts, parallel)
        return certify.certificate(ports.repo, whole.id, interrupted)
    wanted = certify.restores(ports.repo, whole.id, count, seed)
    output.print_note(f"restoring it after {len(wanted)} of its steps")
    verdicts = segments.replay(workspace, ports, request, wanted, parallel).verdicts
    done = [certify.Restore(resumed=each.segment.first, verdict=each) for each in verdicts if each.segment is not None]
    return certify.certificate(ports.repo, whole.id, done)


def _interrupted(ports: "Ports", whole: "Run") -> M5Error:
    """Return the error for a certification that the user stopped, with the runs that it leaves in the store."""
    from m5ws.repository.references import runs
    from m5ws.reproduce import reproduce

    begun = runs.facts(ports.repo)
    left = [whole.id, *runs.replays_among(begun, whole.id)] if whole.id in begun else []
    hint = "Run `m5ws certify` again. It starts from the beginning."
    if not left:
        return reproduce.ReplayInterrupted("stopped before the training began: nothing is certified", hint=hint)
    return reproduce.ReplayInterrupted(
        f"stopped before a result: nothing is certified. Runs that are left: {', '.join(left)}",
        hint=f"{hint} `m5ws rm {' '.join(left)}` removes these runs.",
    )


def train(workspace: "Workspace", ports: "Ports", whole: "Run", *, progress: bool) -> None:
    """Run the uninterrupted training. Raises NothingToCertify, or KeyboardInterrupt if the user stops it."""
    from m5ws.attempts import leader, planning

    plan = planning.plan(ports.repo, whole, workspace.home, workspace.root, ports.environment, ports.tracker)
    output.print_note(f"training ({whole.spec.processes}) without an interruption, as {whole.id}")
    with interrupt.on_signals(), RunProgress(enabled=progress) as shown:
        result = leader.execute(ports, plan, shown.watch, shown.prepare)
    if result.asked:
        raise KeyboardInterrupt
    if result.outcome != "finished":
        raise NothingToCertify(
            f"run {whole.id} {describe_ended(Ended(side='training', outcome=result.outcome, reason=result.reason))}",
            hint=f"`m5ws logs {whole.id}` prints the output of its ranks.",
        )


def _interrupt(
    workspace: "Workspace", ports: "Ports", request: "ReplayRequest", parts: list[Segment], parallel: int
) -> "list[Restore]":
    """Interrupt and resume the training before each segment, and return the published results. Ctrl-C stops them all.

    If one differs, the training is replayed without an interruption.
    """
    from m5ws.repository.references import runs
    from m5ws.reproduce import interruptions, reproduce

    stopped = threading.Event()
    trial = interruptions.Trial(
        ports=ports,
        whole=runs.load(ports.repo, request.original),
        home=workspace.home,
        author_dir=workspace.root,
        rules=request.rules,
        watch=lambda *_: stopped.is_set(),
    )
    results = segments.follow(
        parts,
        lambda part: interruptions.interrupt(trial, part.first, output.print_note),
        parallel,
        "interrupting and resuming the training",
        lambda result: output.print_note(f"interrupted after step {result.after}: {result.verdict.outcome}"),
        stopped.set,
    )
    if any(map(interruptions.is_unsure, results)):
        with interrupt.on_signals():
            repeated = _repeat(trial, request)
        results = [interruptions.judge_repetition(result, repeated) for result in results]
    for result in results:
        reproduce.publish(trial.ports, trial.home, result.verdict)
    return results


def _repeat(trial: "Trial", request: "ReplayRequest") -> "Verdict":
    """Replay the training without an interruption, and return the verdict."""
    from m5ws.reproduce import reproduce

    plan = reproduce.plan(trial.ports, request, trial.home, trial.author_dir)
    output.print_note(f"a resume differs: training without an interruption, as {plan.run.id}")
    return reproduce.execute(trial.ports, request, plan, lambda _: None, trial.watch, on_recheck=verdict.print_recheck)


def format_certificate(certificate: "Certificate") -> str:
    """Return a certificate for people: the result, then the versions, then each restore."""
    title = "CERTIFIED" if certificate.outcome == "certified" else "NOT CERTIFIED"
    lines = [
        f"{title}: run {certificate.run}",
        f"  {describe(certificate)}",
        "",
        output.fields(certificate.what, "  "),
        "",
        output.table(*_table(certificate)),
    ]
    for restore in certificate.verdicts:
        if restore.outcome not in ("sampled", "reproduced"):
            lines += ["", verdict.format_verdict(restore)]
    if certificate.interrupted and certificate.exit_code == 0 and certificate.verdicts[0].not_compared:
        lines += ["", "not compared:", *(f"  {describe(gap)}" for gap in certificate.verdicts[0].not_compared)]
    return "\n".join(lines)


def _table(certificate: "Certificate") -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the columns and rows of the restores."""
    rows: list[tuple[str, ...]] = [
        ("unknown" if step is None else "the beginning" if step == 0 else str(step), _result(each), each.replay)
        for step, each in zip(certificate.restored, certificate.verdicts, strict=True)
    ]
    if not certificate.interrupted:
        return ("restored after step", "result", "replayed as"), rows
    after = map(str, certificate.interrupted)
    return ("interrupted after step", "resumed after step", "result", "replayed as"), [
        (step, *row) for step, row in zip(after, rows, strict=True)
    ]


def _result(verdict: "Verdict") -> str:
    outcome = find_outcome(verdict)
    return "equal" if outcome == "certified" else outcome
