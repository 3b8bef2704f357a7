"""The runs of a sweep: a supervisor that starts them as processes of the same program, some at a time.

Each process supervises one run as `m5ws run` does, so a sweep adds no second way to train. If this process dies in any
way, each of the other processes ends its run as after Ctrl-C.
"""

import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from m5ws import locks
from m5ws.cli.terminal import interrupt, output
from m5ws.errors import M5Error, UsageError
from m5ws.launch import gpus
from m5ws.launch.interface import Launcher, Process
from m5ws.logs.log_lines import LogReader
from m5ws.outputs import saved
from m5ws.records import codec
from m5ws.records.launch import LaunchRequest
from m5ws.records.run import Axis, Run, Sweep

if TYPE_CHECKING:
    from m5ws.attempts.sweeps import SweepRun
    from m5ws.cli.parameters.cluster_options import ClusterArguments
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_POLL_S = 0.1
_PLANNED = "planned"
_INTERRUPTED = 130
_OUTCOMES = {0: "finished", 1: "failed", 4: "superseded", 5: "unsaved", 6: "removed", _INTERRUPTED: "interrupted"}
"""Outcomes of runs by the exit status of `m5ws run`."""


class SweepIncomplete(M5Error):
    """Some runs of a sweep did not finish. The exit status is theirs, or 1 if they have several."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a sweep to start or to resume. `base` is a run with the launch of all of them."""

    sweep: Sweep
    base: Run
    runs: "tuple[SweepRun, ...]"


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run of a sweep; without an `exit_code` it was not started."""

    run: str
    name: str
    values: dict[str, str]
    outcome: str
    exit_code: int | None = None


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `m5ws run` and `m5ws resume` for the runs of a sweep. `why` is for new runs."""

    env: tuple[str, ...] = ()
    why: str | None = None
    progress: bool = True
    take_over: bool = False


def plan_new(repo: "Repository", base: Run, axes: Sequence[Axis]) -> SweepPlan:
    """Return the plan of a new sweep over the inputs of `base`. Raises UsageError."""
    from m5ws.attempts import sweeps

    sweep = sweeps.create(repo, base, axes)
    return SweepPlan(sweep=sweep, base=base, runs=tuple(sweeps.list_planned(sweep)))


def plan_resume(repo: "Repository", sweep_id: str) -> SweepPlan:
    """Return the runs of a sweep that have not finished. Raises UsageError if all have."""
    from m5ws.attempts import sweeps

    base = sweeps.load(repo, sweep_id)
    assert base.sweep is not None
    left = tuple(run for run in sweeps.list_all(repo, base.sweep) if run.is_waiting)
    if not left:
        raise UsageError(f"all runs of sweep {sweep_id} have finished", hint=f"`m5ws show {sweep_id}` lists the runs.")
    return SweepPlan(sweep=base.sweep, base=base, runs=left)


def describe(plan: SweepPlan) -> str:
    """Return the runs of a plan as a table."""
    rows = [(run.id, run.state, run.name) for run in plan.runs]
    return "\n".join([f"sweep {plan.sweep.id}, {len(rows):,} runs", output.table(("RUN", "STATE", "NAME"), rows)])


def show(repo: "Repository", sweep_id: str, *, as_json: bool) -> None:
    """Print a sweep and the state of each of its runs. Raises NotFound."""
    from m5ws.attempts import sweep_grid, sweeps

    sweep = sweeps.load(repo, sweep_id).sweep
    assert sweep is not None
    runs = sweeps.list_all(repo, sweep)
    if as_json:
        return output.print_json({"sweep": sweep, "runs": runs})
    axes = {sweep_grid.name_key(axis.key): ", ".join(axis.values) for axis in sweep.axes}
    output.echo(f"sweep {sweep.id}", output.fields({"name": sweep.name, "snapshot": sweep.snapshot, **axes}, "  "), "")
    rows = [(run.id, run.state, str(run.last_step), run.name) for run in runs]
    return output.echo(output.table(("RUN", "STATE", "STEP", "NAME"), rows))


def execute(
    workspace: "Workspace", repo: "Repository", plan: SweepPlan, options: SweepOptions, *, parallel: int, as_json: bool
) -> None:
    """Start the runs of a plan, `parallel` at a time, and report their results.

    Raises UsageError if the sweep is alive on this machine, SweepIncomplete unless all runs finish.
    """
    if not as_json:
        output.echo(plan.sweep.id)
    with _lock(workspace.prepare(), plan.sweep), interrupt.on_signals():
        request = partial(_request, workspace, repo, plan, options)
        shares = gpus.shares(gpus.visible(os.environ), parallel, plan.base.spec.nproc or 1)
        results = Supervisor(workspace.launcher(), request, shares).run(plan.runs)
    if as_json:
        output.print_json({"sweep": plan.sweep, "runs": results})
    _judge(repo, plan.sweep, results)


def submit(
    workspace: "Workspace", repo: "Repository", plan: SweepPlan, given: "ClusterArguments", why: str | None
) -> None:
    """Submit a job for each run of a new sweep, and print the jobs. Raises as `cluster_options.submit`."""
    from m5ws.attempts import sweeps
    from m5ws.cli.parameters import cluster_options
    from m5ws.engines.task_files import SUBMIT
    from m5ws.library import clusters

    cluster, submitted = clusters.Cluster(workspace, given["on"] or ""), list[clusters.Submitted]()
    try:
        for planned in plan.runs:
            run = sweeps.derive(repo, plan.sweep, plan.base, planned)
            job = cluster.plan_run(repo, run, given["nodes"] or 1, given["env"])
            if not submitted:
                cluster.refuse_unaccepted(job)
            submitted.append(cluster.start_run(repo, run, job, why))
    except M5Error:
        if submitted:
            output.warn(
                f"{len(submitted)} of {len(plan.runs)} jobs exist; `m5ws show {plan.sweep.id}` shows their runs"
            )
        raise
    if given["as_json"]:
        return output.print_json({"sweep": plan.sweep, "jobs": submitted})
    output.echo(plan.sweep.id)
    written = [each for each in submitted if each.job.engine in SUBMIT]
    for each in written:
        cluster_options.print_job(each)
    verb = "written" if written else "submitted"
    return output.print_note(f"{len(submitted)} jobs were {verb}; `m5ws show {plan.sweep.id}` shows the runs")


@contextmanager
def _lock(home: Path, sweep: Sweep) -> Iterator[None]:
    """Lock a sweep on this machine. Raises UsageError if another process has the lock."""
    folder = home / "sweeps"
    folder.mkdir(exist_ok=True)
    with open(folder / sweep.id, "a") as file:
        if not locks.acquire(file.fileno()):
            raise UsageError(f"sweep {sweep.id} is running", hint=f"`m5ws show {sweep.id}` lists its runs.")
        yield


def _request(
    workspace: "Workspace", repo: "Repository", plan: SweepPlan, options: SweepOptions, planned: "SweepRun"
) -> LaunchRequest:
    """Return the launch of the command that starts or resumes a run. Raises M5Error if a new run cannot be derived."""
    from m5ws.attempts import sweeps
    from m5ws.repository.references import checkpoints

    folder = workspace.home / "runs" / planned.id
    folder.mkdir(parents=True, exist_ok=True)
    if planned.state == sweeps.NOT_STARTED:
        run = sweeps.derive(repo, plan.sweep, plan.base, planned)
        (folder / _PLANNED).write_bytes(codec.encode(run))
        words = ["run", "--planned", str(folder / _PLANNED)]
        words += [f"--why={options.why}"] if options.why is not None else []
    else:
        is_saved = checkpoints.valid(repo, planned.id) or saved.newest_to_restore(repo, planned.id)
        words = ["resume", planned.id, *["--from-scratch"] * (not is_saved), *["--take-over"] * options.take_over]
    words += [*(f"--env={value}" for value in options.env), *["--no-progress"] * (not options.progress)]
    # -P: the current directory may contain a folder named m5ws.
    argv = (sys.executable, "-P", "-m", "m5ws", "-C", str(workspace.root), *words)
    return LaunchRequest(argv=argv, cwd=str(workspace.root), environment={}, log=str(folder / "supervisor.log"))


class Supervisor:
    """Starts as many runs at a time as there are shares, and shows their output line by line.

    `request` returns the launch of a run. `shares` are the variables for the runs that train at the same time. A run
    that fails, or that cannot be started, does not stop the other runs.
    """

    def __init__(
        self, launcher: Launcher, request: "Callable[[SweepRun], LaunchRequest]", shares: Sequence[Mapping[str, str]]
    ) -> None:
        self._launcher, self._request = launcher, request
        self._free = deque(shares)
        self._running: list[tuple[SweepRun, Process, LogReader, Mapping[str, str]]] = []
        self._results: dict[str, StartedRun] = {}
        self._total = 0

    def run(self, planned: "Sequence[SweepRun]") -> list[StartedRun]:
        """Return the results of runs, in their order. Ctrl-C stops the runs in progress, and starts no more."""
        waiting, self._total = deque(planned), len(planned)
        while waiting or self._running:
            try:
                while waiting and self._free:
                    self._start(waiting.popleft())
                time.sleep(_POLL_S)
                self._look()
            except KeyboardInterrupt:
                waiting.clear()
                self._stop()
        return [self._results.get(run.id, _result(run, "not started")) for run in planned]

    def _start(self, run: "SweepRun") -> None:
        share = self._free.popleft()
        try:
            request = self._request(run)
            request = msgspec.structs.replace(request, environment={**request.environment, **share})
            log = LogReader(Path(request.log), at_end=True)
            self._running.append((run, self._launcher.launch(request), log, share))
        except M5Error as error:
            self._free.append(share)
            self._results[run.id] = _result(run, "not started", error.exit_code)
            self._say(run, f"not started: {error}", output.warn)
        else:
            self._say(run, f"started as run {run.id}")

    def _look(self) -> None:
        """Show new output of the runs, and record the runs that have ended."""
        for member in tuple(self._running):
            run, process, log, share = member
            exit_code = process.poll()
            for line in log.read(last=exit_code is not None):
                # A progress bar writes its states over each other, and the last state counts.
                text = next((state for state in reversed(line.split("\r")) if state.strip()), "")
                if text not in ("", run.id):
                    self._say(run, text)
            if exit_code is not None:
                self._running.remove(member)
                self._free.append(share)
                outcome = _OUTCOMES.get(exit_code, "interrupted" if exit_code < 0 else "not started")
                self._results[run.id] = _result(run, outcome, exit_code)
                self._say(run, f"{outcome}, {len(self._results):,} of {self._total:,} runs have ended")

    def _stop(self) -> None:
        """Have the running runs end as after Ctrl-C. A second call ends their ranks at once."""
        if self._running:
            output.warn(f"stopping {len(self._running)} runs, which may save last checkpoints")
        for _, process, *_ in self._running:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)

    def _say(self, run: "SweepRun", text: str, write: Callable[[str], None] = output.print_note) -> None:
        write(f"{run.name}: {text}")


def _result(run: "SweepRun", outcome: str, exit_code: int | None = None) -> StartedRun:
    return StartedRun(run=run.id, name=run.name, values=run.values, outcome=outcome, exit_code=exit_code)


def _judge(repo: "Repository", sweep: Sweep, results: Sequence[StartedRun]) -> None:
    """Report the results of a sweep. Raises SweepIncomplete unless all runs have finished."""
    counts = Counter(result.outcome for result in results)
    summary = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    failed = {result.exit_code for result in results if result.exit_code != 0}
    if not failed:
        output.print_note(f"sweep {sweep.id}: {summary}; `m5ws compare {sweep.id}` compares the runs")
        return
    interrupted = {None, _INTERRUPTED} & failed or any(code is not None and code < 0 for code in failed)
    status = _INTERRUPTED if interrupted else failed.pop() if len(failed) == 1 else 1
    assert status is not None
    hint = f"`m5ws resume {sweep.id}` starts and resumes the runs that did not finish."
    if not any(repo.store.stat(f"runs/{result.run}/run") for result in results):
        hint = "No run has begun. Correct the command or the environment, and repeat the sweep."
    raise SweepIncomplete(f"sweep {sweep.id}: {summary}", hint=hint, exit_code=status)
