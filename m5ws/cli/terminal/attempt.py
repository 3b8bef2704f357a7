"""An attempt on the command line: printed, or executed with its progress."""

import shlex
from functools import partial
from typing import TYPE_CHECKING

from m5ws.cli import environment
from m5ws.cli.terminal import interrupt, output, run_end
from m5ws.cli.terminal.run_progress import RunProgress

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.ports import Ports
    from m5ws.cli.parameters.start_options import StartArguments


def start(ports: "Ports", plan: "AttemptPlan", given: "StartArguments") -> None:
    """Print or execute a planned attempt. Raises EnvironmentDiffers, and as `run_end.report` does."""
    environment.policy(given["env"])
    as_json = given["as_json"]
    if given["dry_run"]:
        return output.print_json(plan) if as_json else output.echo(_describe(plan))
    return execute(ports, plan, given["env"], enabled=not given["no_progress"], as_json=as_json)


def execute(ports: "Ports", plan: "AttemptPlan", env: tuple[str, ...], *, enabled: bool, as_json: bool) -> None:
    """Execute a plan and report the result. Raises as `start` does."""
    from m5ws.attempts import aftermath, leader
    from m5ws.wording.incidents import describe_cause

    if not as_json:
        output.echo(plan.run.id)
    log = plan.directory / "logs" / "rank-0.log"
    with interrupt.on_signals(), RunProgress(enabled=enabled, log=log) as shown:
        accept = partial(environment.check, ports, plan, env)
        result = leader.execute(ports, plan, shown.watch, shown.prepare, shown.poll, accept)
    incident = aftermath.conclude(ports, plan, result)
    if as_json:
        output.print_json({"run": plan.run, "result": result})
    if any((work := plan.directory / "work").glob("*")):
        output.print_note(f"files of the script are kept in {work}")
    if incident is not None:
        output.print_note(f"cause: {describe_cause(incident)}")
    run_end.report(ports, plan, result)


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
