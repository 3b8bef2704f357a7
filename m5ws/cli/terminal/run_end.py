"""The end of a run: its errors, the remedies, and the command that verifies the run."""

from typing import TYPE_CHECKING

from m5ws.agent.link import StartAgain
from m5ws.cli.terminal import output
from m5ws.errors import M5Error
from m5ws.records.ledger import COMPLETE
from m5ws.wording.failures import describe_end

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.ports import Ports
    from m5ws.attempts.results import AttemptResult
    from m5ws.records.run import Run


class RunFailed(M5Error):
    """The script of a run, or its launch, failed; or a resume was not exact, and `[run] inexact` is `stop`."""

    exit_code = 1


class Superseded(M5Error):
    """A newer attempt of the run has begun elsewhere, and this attempt was stopped."""

    exit_code = 4


class RunInterrupted(M5Error):
    """A run was stopped before its end."""

    exit_code = 130


class RunUnsaved(M5Error):
    """A run did all its steps, but the store does not have all its results."""

    exit_code = 5


def report(ports: "Ports", plan: "AttemptPlan", result: "AttemptResult") -> None:
    """Report the result of a run. Raises an error for any other outcome than `finished`."""
    run, resume = result.run, f"`m5ws resume {result.run}` continues the run"
    ended = f"run {run} {result.outcome}" + (f": {describe_end(result.reason)}" if result.reason else "")
    if not result.delivered and result.outcome not in COMPLETE:
        output.warn(
            "note: the store does not have the complete ledger yet; the next m5ws command here uploads the rest"
        )
    if result.untracked is not None and ports.tracker is not None:
        rest = "MLflow receives the rest in the background, with this or a later m5ws command here, or by"
        output.print_note(f"{rest} {ports.tracker.remedy}. {result.untracked}".strip())
    if result.restart is not None and not result.restart.again:
        output.print_note(f"not restarted: {result.restart.reason}")
    if result.superseded:
        raise Superseded(f"attempt {result.attempt} of {ended}", hint=f"`m5ws show {run}` shows the newer attempt.")
    if result.again:
        raise StartAgain(ended, hint="The scheduler starts the agents again.")
    if result.outcome == "interrupted":
        restart = f"`m5ws resume {run} --from-scratch` restarts it"
        raise RunInterrupted(ended, hint=f"{resume}. If the store has nothing of it to restore, {restart}.")
    if result.outcome == "unsaved":
        kept = "The next m5ws command on this machine uploads the results that are kept here, if the store answers."
        raise RunUnsaved(ended, hint=f"{kept} If nothing was kept, {resume} from the newest checkpoint.")
    if result.reason is not None and result.reason.kind == "inexact resume":
        hint = f'With [run] inexact = "warn", {resume}. `m5ws certify` tests the restores of a script.'
        raise RunFailed(ended, hint=hint)
    if result.outcome != "finished":
        advice = f"`m5ws cause {run}` names the cause, and `m5ws logs {run}` prints the output of its ranks."
        hint = f"{_restored(ports, plan, result)}{advice}"
        raise RunFailed(ended, hint=hint)
    if not result.delivered:
        raise RunUnsaved(
            f"{ended}, but the store does not have the complete ledger",
            hint="The next m5ws command on this machine uploads the rest.",
        )
    _print_provable(ports, plan.run)


def _restored(ports: "Ports", plan: "AttemptPlan", result: "AttemptResult") -> str:
    """Return advice on the output files that an attempt had restored, if it failed before its first step."""
    from m5ws.runs import state

    run = plan.run.id
    if plan.outputs is None or not result.delivered or state.attempt_of(ports.repo, run, plan.attempt).last_step:
        return ""
    return (
        f"The attempt had restored the output files {plan.outputs.name} and recorded no step. "
        f"`m5ws outputs {run} --copies` lists earlier copies, and `m5ws resume {run} --at TIME` restores one; "
        "`--from-scratch` restores none. "
    )


def _print_provable(ports: "Ports", run: "Run") -> None:
    """Print the command that verifies a finished run, or the reason why nothing can be verified."""
    from m5ws.reproduce.outputs import results
    from m5ws.wording.verdicts import NOTHING_RECORDED

    if not results.has_none(ports.repo, ports.tracker, run.id):
        return output.print_note(f"run {run.id} finished; verify it with `m5ws reproduce {run.id}`")
    output.warn(f"run {run.id} finished; `m5ws reproduce` cannot verify it: {NOTHING_RECORDED}")
    hint = "Set outputs in [run] of m5ws.toml to the files and folders that the script writes."
    if run.spec.outputs:
        hint = f"The script wrote no file to {', '.join(run.spec.outputs)}, of [run] outputs in m5ws.toml."
    return output.warn(f"hint: {hint}")
