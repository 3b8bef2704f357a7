"""Options of the commands that can run on a cluster, and the submission of their job."""

from typing import TYPE_CHECKING, TypedDict

import click
import msgspec

from m5ws.cli import environment
from m5ws.cli.lazy_group import typed_words
from m5ws.cli.parameters import start_options
from m5ws.cli.parameters.grouped import grouped
from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from m5ws.config.settings import Settings
    from m5ws.engines.submission import Submission
    from m5ws.records.job import Job
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

on = click.option("--on", metavar="NAME", help="Submit a job to [clusters.NAME] in m5ws.toml, and return.")
command_on = click.option("--on", metavar="NAME", help="Run this command in a job of [clusters.NAME] in m5ws.toml.")
nodes = click.option(
    "--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes of the job (default: 1)."
)
options = grouped(on, nodes)


ALONE = "--nodes requires --on NAME, a cluster in m5ws.toml"


class ClusterArguments(start_options.StartArguments):
    """The values of `options`, and of the options of a start."""

    on: str | None
    nodes: int | None


class Submitted(TypedDict):
    """A submitted job without its settings, and its id in the engine."""

    job: "Job"
    id: str


def submit_command(
    context: click.Context,
    workspace: "Workspace",
    repo: "Repository",
    subject: str,
    cluster: str,
    pinned: tuple[str, ...] = (),
    *,
    shares: int = 1,
    as_json: bool,
) -> None:
    """Submit the typed command, without `--on`, as a job of one node. `pinned` are words after its name.

    `subject` is the run or the snapshot that the job is about. Of several jobs, each gets a share of the segments.
    Raises as `submit`.
    """
    from m5ws.engines import submission

    verb, *words = typed_words(context)
    words = _without("--on", words)
    settings = _settings(workspace, cluster)
    commands = [(verb, *pinned, *words)]
    if shares > 1:
        alone = _without("--parallel", words)
        commands = [(verb, "--share", f"{number}/{shares}", *alone) for number in range(1, shares + 1)]
    planned = [submission.plan(settings, cluster, subject, workspace.store_url, 1, (), each) for each in commands]
    submission.refuse_unaccepted(settings, planned[0])
    submitted = [_start(workspace, repo, settings, job) for job in planned]
    if as_json:
        return output.print_json(submitted if shares > 1 else submitted[0])
    for each in submitted:
        _print(each)
    return None


def _without(option: str, words: "Sequence[str]") -> list[str]:
    """Return words without an option and its value. Words after `--` stay."""
    kept = list(words)
    end = kept.index("--") if "--" in kept else len(kept)
    place = next(number for number, word in enumerate(kept[:end]) if word.partition("=")[0] == option)
    del kept[place : place + (1 if "=" in kept[place] else 2)]
    return kept


def refuse_alone(given: ClusterArguments) -> None:
    """Raise UsageError for a number of nodes without a cluster."""
    if given["nodes"] is not None and given["on"] is None:
        raise UsageError(ALONE)


def submit(
    workspace: "Workspace", repo: "Repository", run: "Run", given: ClusterArguments, nodes: int, why: str | None = None
) -> None:
    """Submit a job for a run, which is published first if it is new, and print both. A dry run prints the job.

    Raises UsageError for a store that the nodes cannot share, and EngineUnavailable.
    """
    settings = _settings(workspace, given["on"])
    planned = _plan(workspace, repo, run, settings, given, nodes)
    if given["dry_run"]:
        return output.print_json(planned.job) if given["as_json"] else output.echo(planned.job.script)
    submitted = _start_run(workspace, repo, run, settings, planned, why)
    if given["as_json"]:
        return output.print_json({"run": run, **submitted})
    output.echo(run.id)
    _print(submitted)
    next_steps = ("show", "shows its state"), ("wait", "waits for its end"), ("cancel", "ends it")
    return output.print_note("; ".join(f"`m5ws {verb} {run.id}` {text}" for verb, text in next_steps))


def submit_all(
    workspace: "Workspace",
    repo: "Repository",
    runs: "Iterable[Run]",
    given: ClusterArguments,
    nodes: int,
    why: str | None,
) -> list[Submitted]:
    """Submit a job for each run, and return the jobs. Raises as `submit`."""
    settings = _settings(workspace, given["on"])
    planned = ((run, _plan(workspace, repo, run, settings, given, nodes)) for run in runs)
    return [_start_run(workspace, repo, run, settings, each, why) for run, each in planned]


def _plan(
    workspace: "Workspace", repo: "Repository", run: "Run", settings: "Settings", given: ClusterArguments, nodes: int
) -> "Submission":
    """Return the job of a run that the engine would accept, or of a dry run."""
    from m5ws.attempts import planning
    from m5ws.engines import submission

    environment.policy(given["env"])
    planning.refuse_unfit(repo, run, workspace.environment, nodes)
    options = tuple(word for each in given["env"] for word in ("--env", each))
    planned = submission.plan(settings, given["on"] or "", run.id, workspace.store_url, nodes, options)
    if not given["dry_run"]:
        submission.refuse_unaccepted(settings, planned)
    return planned


def _start_run(
    workspace: "Workspace", repo: "Repository", run: "Run", settings: "Settings", planned: "Submission", why: str | None
) -> Submitted:
    """Publish a run if it is new, with its expectation, and start its job."""
    from m5ws.library import actions
    from m5ws.repository.references import notes, runs

    if run.id not in runs.ids(repo):
        runs.publish(repo, workspace.ports(repo).sign(run))
        if why is not None:
            notes.publish(repo, actions.write_note(workspace, run.id, why, kind="why"))
    return _start(workspace, repo, settings, planned)


def _settings(workspace: "Workspace", cluster: str | None) -> "Settings":
    """Return the settings for the nodes of a cluster. Raises UsageError for an unknown cluster, or a private store."""
    from m5ws.engines import submission

    settings = workspace.settings_of_nodes()
    workspace.refuse_private_store(submission.cluster_of(settings, cluster or "").shared, cluster or "")
    return settings


def _start(workspace: "Workspace", repo: "Repository", settings: "Settings", planned: "Submission") -> Submitted:
    """Publish a job and start it."""
    from m5ws.engines import submission

    signed = submission.sign(planned, repo.store.now(), workspace.creator())
    identifier = submission.submit(repo, settings, signed)
    return {"job": msgspec.structs.replace(signed.job, settings=""), "id": identifier}


def _print(submitted: Submitted) -> None:
    job = submitted["job"]
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    output.print_note(f"job {submitted['id']} was submitted to {job.cluster}, {nodes}")
