"""`m5ws gc`."""

import re
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.records.gc import Done, GcPlan
    from m5ws.repository.gc.gc import Planned
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class Duration(click.ParamType[float]):
    """A number and a unit (`30d`, `24h`, `90m`, `0s`); the value is in seconds."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+)([smhdw])", value)
        if match is None:
            self.fail(f"{value!r} is not a number and s, m, h, d or w, as in 30d", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Print what would be planned; publish and delete nothing.")
@click.option(
    "--older-than",
    type=Duration(),
    default="30d",
    metavar="AGE",
    show_default=True,
    help="Plan only what is at least this old, by the store's clock.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="24h",
    metavar="TIME",
    show_default=True,
    help="Execute a plan only this long after it was published.",
)
@click.option("--execute", "wanted", metavar="PLAN", help="Execute this plan, and plan nothing.")
@click.option("--take-over", is_flag=True, help="With --execute: a gc elsewhere that began it is certain to be dead.")
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    dry_run: bool,
    older_than: float,
    grace: float,
    wanted: str | None,
    take_over: bool,
    as_json: bool,
) -> None:
    """Delete what nothing needs: planned first, done after a grace period.

    The first call publishes a plan and deletes nothing; a later call, when the grace period is over, looks again
    and deletes what is in the plan and still not needed. Every snapshot and run stays; checkpoints are retired by
    the rules of [retention] in m5ws.toml, and copies of output files once newer ones are there. Writers may be at
    work all the while, and a gc that was killed goes on where it stopped.

    \b
    Example:
      m5ws gc --dry-run
    """
    if take_over and not wanted:
        raise click.UsageError("--take-over needs --execute PLAN", context)
    if dry_run and wanted:
        raise click.UsageError("--dry-run does not go with --execute", context)
    here = names.workspace(context)
    repo = here.repository() if dry_run else names.settled(here)
    if not dry_run and _went_on(here, repo, grace, wanted, take_over, as_json):
        return
    planned = _plan(here, repo, older_than, dry_run)
    if as_json:
        output.print_json({"plan": planned.id, "state": "planned" if planned.id else "nothing", "would": planned.plan})
    else:
        output.echo(_planned(planned, grace))


def _plan(here: "Workspace", repo: "Repository", older_than: float, dry_run: bool) -> "Planned":
    from m5ws.records.gc import Rules
    from m5ws.repository.gc import gc

    rules = Rules(last=here.settings.retention.last, every=here.settings.retention.every)
    with progress.Bar() as bar:
        return gc.plan(repo, rules, older_than, dry_run=dry_run, progress=bar)


def _went_on(
    here: "Workspace", repo: "Repository", grace: float, wanted: str | None, take_over: bool, as_json: bool
) -> bool:
    """Execute a plan that is due, and print what came of it; return whether there was any that is not done."""
    from m5ws.repository.gc import execute

    name = execute.resolve(repo, wanted) if wanted else None
    with execute.alone(here.prepare()) as holder, progress.Bar() as bar:
        if name is None:
            due = execute.due(repo, grace)
            if due is None:
                return False
            if due.wait_s > 0:
                _print_waiting(due.plan, due.wait_s, as_json)
                return True
            name = due.plan
        done = execute.execute(repo, name, holder, grace_s=grace, take_over=take_over, progress=bar)
        execute.clear(repo, name)
    _print_done(name, done, as_json)
    return True


def _print_waiting(plan: str, wait_s: float, as_json: bool) -> None:
    if as_json:
        return output.print_json({"plan": plan, "state": "waiting", "wait_s": wait_s})
    return output.echo(
        f"plan {plan} waits: `m5ws gc` executes it in {output.duration(wait_s)}, and plans nothing new now"
    )


def _print_done(plan: str, done: "Done", as_json: bool) -> None:
    if as_json:
        return output.print_json({"plan": plan, "state": "done", "deleted": done})
    spared = f"; {done.spared:,} had come to be needed and stay" if done.spared else ""
    what = _totals(done)
    return output.echo(f"plan {plan} is done: deleted {what}{spared}")


def _planned(planned: "Planned", grace: float) -> str:
    plan = planned.plan
    totals = _totals(plan)
    stay = f"{plan.kept_objects:,} objects are needed, {plan.young_objects:,} are too young to tell"
    if not plan.objects and not plan.checkpoints and not plan.copies:
        return f"nothing to delete: {stay}"
    lines = [f"to be deleted: {totals}", f"  {stay}", "", *_tables(plan), ""]
    if planned.id is None:
        return "\n".join([*lines, "a dry run: nothing was published"])
    when = f"in {output.duration(grace)}" if grace else "now"
    return "\n".join([*lines, f"plan {planned.id}: `m5ws gc` executes it {when}; until then nothing is deleted"])


def _totals(one: "GcPlan | Done") -> str:
    copies = f", {one.copies:,} copies of output files" if one.copies else ""
    return f"{one.checkpoints:,} checkpoints{copies}, {one.objects:,} objects, {output.size(one.size_bytes)}"


def _tables(plan: "GcPlan") -> list[str]:
    freed = [
        (one.run or "(never published)", f"{one.checkpoints:,}", f"{one.objects:,}", output.size(one.size_bytes))
        for one in plan.freed
    ]
    largest = [(output.short(one.digest), one.run or "-", output.size(one.size_bytes)) for one in plan.largest]
    lines = [output.table(("RUN", "CHECKPOINTS", "OBJECTS", "SIZE"), freed)]
    return [*lines, "", output.table(("LARGEST", "RUN", "SIZE"), largest)] if largest else lines
