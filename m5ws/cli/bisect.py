"""`m5ws bisect`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import cluster_options, names
from m5ws.cli.terminal import interrupt, output, verdict
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.wording.lists import count, list_names

if TYPE_CHECKING:
    from m5ws.agent.ports import Ports
    from m5ws.bisect.bisect import BisectPlan, BisectReport, BisectTask
    from m5ws.bisect.differences import ExcludedDifference
    from m5ws.bisect.trials import Trial
    from m5ws.records.recipe import Recipe
    from m5ws.records.verdict import Change
    from m5ws.workspace import Workspace

_LISTED = 6


@click.command("bisect")
@click.argument("good", type=names.Id(("run",)))
@click.argument("bad", type=names.Id(("run",)))
@click.option(
    "--max-runs", type=click.IntRange(min=1), default=40, show_default=True, metavar="N", help="Run at most N hybrids."
)
@click.option(
    "--env",
    "environments",
    type=click.Choice(["rebuild"]),
    help="rebuild: try installed distributions too; each hybrid runs in a virtual environment of its own.",
)
@click.option("--dry-run", is_flag=True, help="Print the changes to try, and run nothing.")
@cluster_options.command_on
@click.option("--no-progress", is_flag=True, help="Do not print steps.")
@output.json_command
def command(
    context: click.Context,
    good: str,
    bad: str,
    max_runs: int,
    environments: str | None,
    dry_run: bool,
    on: str | None,
    no_progress: bool,
    as_json: bool,
) -> None:
    """Find the change between two runs that makes their results differ.

    m5ws runs hybrids: run GOOD with some differences taken from run BAD, up to the first step at which the two runs
    differ. The result is a smallest set of changes that causes the difference. A change is a config key, a code file,
    the tokenizer, a dataset, a launch value or a determinism setting. Each is tried alone first. If none suffices
    alone, sets of changes are halved and reduced. --env rebuild adds the installed distributions whose versions
    differ. Other differences between the environments cannot be tried, and are listed.

    Results of hybrids are kept. After Ctrl-C or a too small --max-runs, repeat the command to continue.

    Exit status: 0 explained, 1 not explained by pinned inputs, 2 more runs are needed, or GOOD cannot be repeated
    here.

    \b
    Examples:
      m5ws bisect 7c1d 9a04 --dry-run
      m5ws bisect 7c1d 9a04
      m5ws bisect 7c1d 9a04 --env rebuild
    """
    from m5ws.bisect import bisect

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    ports = workspace.ports(repo)
    good, bad = (names.find_id(repo, name, "run") for name in (good, bad))
    if on is not None:
        cluster_options.submit_command(context, workspace, repo, good, on, as_json=as_json)
        return
    named = workspace.settings.run.results
    task = bisect.plan(ports, good, bad, rebuilt=environments is not None, results=named)
    if dry_run:
        output.print_json(task.plan) if as_json else output.echo(plan_text(task.plan))
        return
    report = _executed(workspace, ports, task, max_runs, rebuild=environments is not None, shown=not no_progress)
    output.print_json(report) if as_json else output.echo(format_report(report))
    context.exit(report.exit_code)


def _executed(
    workspace: "Workspace", ports: "Ports", task: "BisectTask", max_runs: int, *, rebuild: bool, shown: bool
) -> "BisectReport":
    """Run hybrids, and print each set that is tried and its result. Steps are printed if `shown`."""
    from m5ws.bisect import bisect
    from m5ws.bisect.trials import TrialListeners
    from m5ws.cli import environment

    plan = task.plan
    output.print_note(
        f"{count(len(plan.changes), 'difference')} to try, in at most {min(plan.most_runs, max_runs)} runs"
    )

    def begin(taken: tuple[str, ...], run: str) -> None:
        output.print_note(f"trying {_taken(taken, plan)} from {plan.bad} as {run}")

    def report(trial: "Trial") -> None:
        output.print_note(f"{_taken(trial.taken, plan)}: {_answer(trial)}{' (known)' if trial.known else ''}")

    with interrupt.on_signals(), RunProgress(enabled=shown) as progress:

        def rebuilt(recipe: "Recipe") -> "Ports":
            return environment.made(workspace, ports, recipe, progress.prepare)

        told_of = TrialListeners(begin=begin, on_trial=report, watch=progress.watch, prepare=progress.prepare)
        return bisect.execute(
            ports, task, workspace.home, workspace.root, max_runs, told_of, rebuilt if rebuild else None
        )


def plan_text(plan: "BisectPlan") -> str:
    """Return a plan for people: the changes to try."""
    lines = [f"run {plan.bad} differs from run {plan.good}", *_difference(plan), ""]
    if plan.changes:
        lines.append(f"to try, in at most {plan.most_runs:,} runs of {count(max(plan.first.step, 1), 'step')} each:")
        lines.append(f"  nothing (run {plan.good} itself, repeated)")
        tried: list[tuple[str, ...]] = [(name,) for name in plan.alone] or [plan.names]
        lines += [f"  {list_names(taken, most=_LISTED)}" for taken in tried]
        if len(plan.changes) > 1:
            lines.append(
                "  then all differences and subsets if none suffices alone; else all but the difference that does"
            )
    else:
        lines.append("no pinned input that can be tried differs")
    return "\n".join([*lines, *_untried(plan.untried), *_environment("environment", plan.environment)])


def format_report(report: "BisectReport") -> str:
    """Return a report for people: the result, then the evidence, then the changes that were not tried."""
    plan = report.plan
    lines = [f"{report.outcome.upper()}: run {plan.bad} against run {plan.good}", f"  {report.reason}"]
    lines += ["", *_difference(plan)]
    if report.trials:
        known = sum(trial.known for trial in report.trials)
        lines += [
            "",
            f"tried, in {count(report.runs, 'run')}{f' and {known} of an earlier bisection' if known else ''}:",
        ]
        rows = [(_taken(trial.taken, plan), _answer(trial), trial.run or "-") for trial in report.trials]
        lines.append(output.table((f"from {plan.bad}", "result", "run"), rows))
    lines += _untried(plan.untried)
    lines += _environment("environment", plan.environment)
    lines += _environment(f"environment of this machine, since run {plan.good} began", report.here)
    return "\n".join(lines)


def _difference(plan: "BisectPlan") -> list[str]:
    """Return the first difference in lines, and the commits between the two runs."""
    commits = ["", f"commits from {plan.good} to {plan.bad}:"] if plan.commits else []
    return [*verdict.format_divergence(plan.first, ("good", "bad")), *commits, *(f"  {line}" for line in plan.commits)]


def _taken(taken: Sequence[str], plan: "BisectPlan") -> str:
    """Return the changes taken from BAD, or the changes not taken, whichever list is shorter."""
    left = [name for name in plan.names if name not in taken]
    if taken and not left:
        return "all of it" if len(taken) > 1 else taken[0]
    return (
        f"all but {list_names(left, most=_LISTED)}"
        if len(left) < len(taken)
        else list_names(taken, most=_LISTED) or "nothing"
    )


def _answer(trial: "Trial") -> str:
    from m5ws.wording.comparisons import label

    if trial.first is not None:
        return f"different: step {trial.first.step}, {label(trial.first)}"
    return "the same" if trial.answer == "same" else f"unresolved: {trial.reason}"


def _untried(untried: "Sequence[ExcludedDifference]") -> list[str]:
    from m5ws.wording.changes import title

    lines = [f"  {title(excluded.change)}: {excluded.why}" for excluded in untried]
    return ["", "not tried:", *lines] if lines else []


def _environment(head: str, changes: "Sequence[Change]") -> list[str]:
    from m5ws.wording.changes import describe

    lines = [f"  {describe(change, with_part=False)}" for change in changes]
    if any(change.name.startswith("distribution.") and change.rating != "cannot" for change in changes):
        lines.append("  (`--env rebuild` tries distributions)")
    return ["", f"{head} (not tried):", *lines] if lines else []
