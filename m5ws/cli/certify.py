"""`m5ws certify`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import launch_options, names, segments
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
    """The training that restores are held against did not come to its end."""

    exit_code = 3


@click.command("certify")
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a config key; may be repeated.")
@launch_options.trainer
@click.option("--nproc", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Processes.")
@click.option("--steps", type=click.IntRange(min=2), default=10, show_default=True, metavar="N", help="Steps to train.")
@click.option("--restores", type=click.IntRange(min=1), metavar="N", help="Only N restores, drawn at random.")
@click.option("--sample-seed", type=int, default=0, show_default=True, metavar="N", help="What draws them.")
@click.option("--parallel", type=click.IntRange(min=1), default=1, show_default=True, metavar="P", help="At a time.")
@click.option("--no-progress", is_flag=True, help="Print no steps.")
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    snapshot: str | None,
    overrides: tuple[str, ...],
    trainer: Trainer | None,
    nproc: int,
    steps: int,
    restores: int | None,
    sample_seed: int,
    parallel: int,
    no_progress: bool,
    as_json: bool,
) -> None:
    """Find out whether a restore is equal to not stopping.

    The script of m5ws.toml trains for a few steps with a checkpoint after each. Then it is restored after each of
    them, or --restores of them, trained on to the last step, and compared with the training that did not stop, in
    bits. That holds for this script with its framework, optimizer and versions, which are named.

    Exit status: 0 every restore is equal, 1 one is not, 2 it could not be compared, 3 the training did not finish.

    \b
    Examples:
      m5ws certify
      m5ws certify --trainer deepspeed --set zero_stage=3 --steps 20 --parallel 2
    """
    from m5ws.reproduce import certify, reproduce
    from m5ws.runs import run as runs

    here = names.workspace(context)
    repo = names.settled(here, create=True)
    pinned = start(here, repo, snapshot, overrides, None)
    launch = runs.spec(here.settings.run, runs.Options(trainer=trainer, nproc=nproc))
    ports = here.ports(repo)
    whole = certify.training(pinned, launch, steps)
    _train(here, ports, whole, progress=not no_progress)
    wanted = certify.restores(repo, whole.id, restores, sample_seed)
    output.note(f"restoring it after {len(wanted)} of its steps")
    request = reproduce.Request(original=whole.id, env="ignore")
    found = certify.certificate(repo, whole.id, segments.replay(here, ports, request, wanted, parallel).verdicts)
    output.print_json(found) if as_json else output.echo(text(found))
    context.exit(found.exit_code)


def _train(here: "Workspace", ports: "Ports", whole: "Run", *, progress: bool) -> None:
    """Do the training that does not stop. Raises NothingToCertify."""
    from m5ws.runs import run, supervise

    plan = run.plan(ports.repo, whole, here.home, here.root, ports.environment, ports.tracker)
    output.note(f"training {whole.spec.nproc} ranks for {plan.context.until} steps, as {whole.id}")
    with interrupt.on_signals(), RunProgress(enabled=progress) as shown:
        result = supervise.execute(ports, plan, shown.watch, shown.prepare)
    if result.outcome != "finished":
        raise NothingToCertify(
            f"run {whole.id} {result.outcome}: {result.message or f'status {result.exit_code}'}",
            hint=f"`m5ws logs {whole.id}` shows what its ranks wrote.",
        )


def text(found: "Certificate") -> str:
    """Return a certificate for people: the finding first, then what it is about, then each restore."""
    title = "CERTIFIED" if found.outcome == "reproduced" else "NOT CERTIFIED"
    lines = [f"{title}: run {found.run}", f"  {found.reason}", "", output.fields(found.what, "  "), ""]
    rows = [
        (str(one.segment.first), "equal" if one.outcome == "sampled" else one.outcome, one.replay)
        for one in found.verdicts
        if one.segment is not None
    ]
    lines.append(output.table(("restored after step", "then it is", "replayed as"), rows))
    for one in found.verdicts:
        if one.outcome != "sampled":
            lines += ["", verdict.text(one)]
    return "\n".join(lines)
