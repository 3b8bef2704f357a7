"""An attempt on the command line: printed, or executed with its progress."""

import shlex
from functools import partial
from typing import TYPE_CHECKING

from m5ws.cli import environment
from m5ws.cli.terminal import data, interrupt, output, run_end
from m5ws.cli.terminal.run_progress import RunProgress

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.ports import Ports
    from m5ws.attempts.results import AttemptResult
    from m5ws.cli.parameters.start_options import StartArguments


def start(ports: "Ports", plan: "AttemptPlan", given: "StartArguments") -> None:
    """Print or execute a planned attempt. Raises EnvironmentDiffers, and as `run_end.report` does."""
    environment.policy(given["env"])
    as_json = given["as_json"]
    if given["dry_run"]:
        return output.print_json(plan) if as_json else output.echo(_describe(plan))
    return execute(ports, plan, given["env"], enabled=not given["no_progress"], as_json=as_json)


def execute(ports: "Ports", plan: "AttemptPlan", env: tuple[str, ...], *, enabled: bool, as_json: bool) -> None:
    """Execute a plan, and after a failure the attempts by `[run] restart`. Report the last result.

    A scheduler starts the attempts of a job. Raises as `start` does.
    """
    from m5ws.attempts import restarting
    from m5ws.data import prefetching

    if not as_json:
        output.echo(plan.run.id)
    if ports.files is not None:
        for use, _ in prefetching.uses(ports.repo, plan.run.snapshot, ports.files):
            output.print_note(data.describe(use))
    restarts = 0
    with interrupt.on_signals():
        result = _execute(ports, plan, env, enabled=enabled)
        while result.restart is not None and result.restart.again and plan.place.job is None:
            if (following := restarting.plan_next(ports, plan, result.restart)) is None:
                break
            plan, restarts = following, restarts + 1
            result = _execute(ports, plan, env, enabled=enabled)
    if as_json:
        output.print_json({"run": plan.run, "result": result, "restarts": restarts})
    if any((work := plan.directory / "work").glob("*")):
        output.print_note(f"files of the script are kept in {work}")
    run_end.report(ports, plan, result)


def _execute(ports: "Ports", plan: "AttemptPlan", env: tuple[str, ...], *, enabled: bool) -> "AttemptResult":
    """Execute one attempt with its progress, and return the result. Print the cause of a failure."""
    from m5ws.attempts import aftermath, leader
    from m5ws.wording.incidents import describe_cause

    log = plan.directory / "logs" / "rank-0.log"
    with RunProgress(enabled=enabled, log=log) as shown:
        accept = partial(environment.check, ports, plan, env)
        result = leader.execute(ports, plan, shown.watch, shown.prepare, shown.poll, accept)
    aftermath.conclude(ports, plan, result)
    if result.incident is not None:
        output.print_note(f"cause: {describe_cause(result.incident)}")
    return result


def _describe(plan: "AttemptPlan") -> str:
    request = plan.request
    fields = {
        "run": plan.run.id,
        "attempt": str(plan.attempt),
        "snapshot": plan.run.snapshot,
        "starts from": plan.context.parent.name if plan.context.parent else None,
        "restores": f"output files {plan.outputs.name} of attempt {plan.outputs.attempt}" if plan.outputs else None,
        "resumes from": None if plan.context.parent else plan.resume,
        "first": shlex.join(request.prepare) or None,
        "command": shlex.join(request.argv),
    }
    variables = [f"  {name}={shlex.quote(value)}" for name, value in sorted(request.environment.items())]
    return "\n".join([output.fields(fields), "with", *variables])
