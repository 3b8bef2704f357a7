"""`m5ws certify`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import launch_options, names, run_source, segments
from m5ws.cli.snapshot import start
from m5ws.cli.terminal import interrupt, output, verdict
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.errors import M5Error
from m5ws.records.run import Trainer

if TYPE_CHECKING:
    from m5ws.records.run import Run
    from m5ws.reproduce.certify import Certificate
    from m5ws.runs.supervise import Ports
    from m5ws.workspace import Workspace


class NothingToCertify(M5Error):
    """The uninterrupted training did not finish, so restores cannot be compared with it."""

    exit_code = 3


@click.command("certify")
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a config key; may be repeated.")
@launch_options.trainer
@click.option(
    "--nproc",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes (default: 3, or 1 if m5ws.toml starts the script without torchrun).",
)
@click.option(
    "--steps", type=click.IntRange(min=2), default=10, show_default=True, metavar="N", help="Number of steps to train."
)
@click.option("--restores", type=click.IntRange(min=1), metavar="N", help="Test only N restores, chosen at random.")
@click.option("--sample-seed", type=int, default=0, show_default=True, metavar="N", help="Seed of that choice.")
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="P",
    help="Number of parallel restores.",
)
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
    no_progress: bool,
    as_json: bool,
) -> None:
    """Test that resuming from a checkpoint gives the same bits as uninterrupted training.

    The script of m5ws.toml trains for a few steps with a checkpoint after each. Then it is restored from each
    checkpoint, or from --restores of them, and trained to the last step. The results are compared bit for bit with the
    uninterrupted training. The result holds for this script with its framework, optimizer and versions, which are
    listed.

    Exit status: 0 all restores are equal, 1 one differs, 2 one could not be compared, 3 the training did not finish.

    \b
    Examples:
      m5ws certify
      m5ws certify --trainer deepspeed --set zero_stage=3 --steps 20 --parallel 2
    """
    from m5ws.reproduce import certify, reproduce
    from m5ws.runs import run as runs

    workspace = names.workspace(context)
    repo = names.open_repository(workspace, create=True)
    pinned = start(workspace, repo, snapshot, overrides, None)
    options = run_source.taken_over(
        repo, workspace.settings.run, runs.RunOptions(trainer=trainer, nproc=nproc), lambda: pinned
    )
    launch = runs.spec(workspace.settings.run, certify.choose_launcher(workspace.settings.run, options, trainer))
    ports = workspace.ports(repo)
    whole = certify.training(pinned, launch, steps)
    _train(workspace, ports, whole, progress=not no_progress)
    wanted = certify.restores(repo, whole.id, restores, sample_seed)
    output.print_note(f"restoring it after {len(wanted)} of its steps")
    request = reproduce.ReplayRequest(original=whole.id, env="ignore")
    joint = certify.certificate(repo, whole.id, segments.replay(workspace, ports, request, wanted, parallel).verdicts)
    output.print_json(joint) if as_json else output.echo(format_certificate(joint))
    context.exit(joint.exit_code)


def _train(workspace: "Workspace", ports: "Ports", whole: "Run", *, progress: bool) -> None:
    """Run the uninterrupted training. Raises NothingToCertify."""
    from m5ws.runs import run, supervise

    plan = run.plan(ports.repo, whole, workspace.home, workspace.root, ports.environment, ports.tracker)
    output.print_note(f"training {whole.spec.nproc} ranks for {plan.context.until} steps, as {whole.id}")
    with interrupt.on_signals(), RunProgress(enabled=progress) as shown:
        result = supervise.execute(ports, plan, shown.watch, shown.prepare)
    if result.outcome != "finished":
        raise NothingToCertify(
            f"run {whole.id} {result.outcome}: {result.message or f'status {result.exit_code}'}",
            hint=f"`m5ws logs {whole.id}` prints the output of its ranks.",
        )


def format_certificate(certificate: "Certificate") -> str:
    """Return a certificate for people: the result, then the versions, then each restore."""
    title = "CERTIFIED" if certificate.outcome == "reproduced" else "NOT CERTIFIED"
    lines = [
        f"{title}: run {certificate.run}",
        f"  {certificate.reason}",
        "",
        output.fields(certificate.what, "  "),
        "",
    ]
    rows = [
        (str(restore.segment.first), "equal" if restore.outcome == "sampled" else restore.outcome, restore.replay)
        for restore in certificate.verdicts
        if restore.segment is not None
    ]
    lines.append(output.table(("restored after step", "result", "replayed as"), rows))
    for restore in certificate.verdicts:
        if restore.outcome != "sampled":
            lines += ["", verdict.format_verdict(restore)]
    return "\n".join(lines)
