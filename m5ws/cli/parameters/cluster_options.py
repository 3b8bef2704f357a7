"""Options of the commands that can run on a cluster, and the submission of their job."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli import environment
from m5ws.cli.lazy_group import typed_words
from m5ws.cli.parameters import start_options
from m5ws.cli.parameters.grouped import grouped
from m5ws.cli.terminal import data, output
from m5ws.errors import UsageError
from m5ws.wording.lists import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from m5ws.library.clusters import Submitted
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

on = click.option("--on", metavar="NAME", help="Submit a job to [clusters.NAME] in m5ws.toml, and return.")
command_on = click.option("--on", metavar="NAME", help="Run this command in a job of [clusters.NAME] in m5ws.toml.")
nodes = click.option(
    "--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes of the job (default: 1)."
)
scratch = click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    envvar="TMPDIR",
    default=Path("/tmp"),  # noqa: S108  a private folder is made in it
    help="Local disk of this node, for work directories (default: TMPDIR).",
)
options = grouped(on, nodes)


class ClusterArguments(start_options.StartArguments):
    """The values of `options`, and of the options of a start."""

    on: str | None
    nodes: int | None


def submit_command(
    context: click.Context,
    workspace: "Workspace",
    repo: "Repository",
    subject: str,
    cluster: str,
    pinned: tuple[str, ...] = (),
    *,
    nodes: int = 1,
    as_json: bool,
) -> None:
    """Submit the typed command, without `--on` and `--nodes`, as a job. `pinned` are words after its name.

    `subject` is the run or the snapshot that the job is about. All segments of a run are shared by as many jobs as
    `--parallel` names. Raises as `submit`.
    """
    from m5ws.library import clusters

    verb, *words = typed_words(context)
    words = _without("--nodes", _without("--on", words))
    commands = [(verb, *pinned, *words)]
    shares = context.params["parallel"] if context.params.get("all_segments") else 1
    if shares > 1:
        alone = _without("--parallel", words)
        commands = [(verb, "--share", str(number), str(shares), *alone) for number in range(1, shares + 1)]
    chosen = clusters.Cluster(workspace, cluster)
    planned = [chosen.plan(subject, nodes, command=each) for each in commands]
    chosen.refuse_unaccepted(planned[0])
    submitted = [chosen.start(repo, job) for job in planned]
    if as_json:
        return output.print_json(submitted if shares > 1 else submitted[0])
    for each in submitted:
        print_job(each)
    return None


def _without(option: str, words: "Sequence[str]") -> list[str]:
    """Return words without an option and its value, if they have it. Words after `--` stay."""
    kept = list(words)
    end = kept.index("--") if "--" in kept else len(kept)
    for place in [number for number in reversed(range(end)) if kept[number].partition("=")[0] == option]:
        del kept[place : place + (1 if "=" in kept[place] else 2)]
    return kept


def refuse_alone(cluster: str | None, nodes: int | None) -> None:
    """Raise UsageError for a number of nodes without a cluster."""
    if nodes is not None and cluster is None:
        raise UsageError("--nodes requires --on NAME, a cluster in m5ws.toml")


def submit(
    workspace: "Workspace", repo: "Repository", run: "Run", given: ClusterArguments, nodes: int, why: str | None = None
) -> None:
    """Submit a job for a run, which is published first if it is new, and print both. A dry run prints the job.

    Raises UsageError for a store that the nodes cannot share, and EngineUnavailable.
    """
    from m5ws.library import clusters

    environment.policy(given["env"])
    cluster = clusters.Cluster(workspace, given["on"] or "")
    planned = cluster.plan_run(repo, run, nodes, given["env"])
    if given["dry_run"]:
        if given["as_json"]:
            return output.print_json(planned.job)
        return output.echo("\n".join(each.job.script for each in (planned.after, planned) if each is not None))
    cluster.refuse_unaccepted(planned)
    crossing = cluster.crossing(repo, run)
    submitted = cluster.start_run(repo, run, planned, why)
    if given["as_json"]:
        return output.print_json({"run": run, "job": submitted.job, "id": submitted.id, "crossing": crossing})
    output.echo(run.id)
    print_job(submitted)
    if crossing is not None:
        regions = (crossing.here, *(queue.region for queue in cluster.queues))
        each = (msgspec.structs.replace(crossing, here=region) for region in regions)
        for line in dict.fromkeys(line for one in each for line in data.describe_crossing(one, given["on"] or "")):
            output.print_note(line)
    if cluster.queues:
        output.print_note(
            f"the job moves to the next of {count(len(cluster.queues), 'queue')} while `m5ws wait {run.id}` runs "
            "somewhere, and never without it"
        )
    next_steps = ("show", "shows its state"), ("wait", "waits for its end"), ("cancel", "ends it")
    return output.print_note("; ".join(f"`m5ws {verb} {run.id}` {text}" for verb, text in next_steps))


def print_job(submitted: "Submitted") -> None:
    """Print a job with its id, or with the command that submits its file."""
    from m5ws.engines.task_files import SUBMIT

    job, nodes = submitted.job, count(submitted.job.nodes, "node")
    if job.engine in SUBMIT:
        output.print_note(f"job {job.name} is written for {nodes}, and `{submitted.id}` submits it to {job.cluster}")
    else:
        output.print_note(f"job {submitted.id} was submitted to {job.cluster}, {nodes}")
