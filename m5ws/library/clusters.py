"""Jobs on a cluster of a workspace: planned, checked and started; and the workspace of an agent on a node."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from m5ws.attempts import planning
from m5ws.config.settings import BatchCluster, BatchQueue, HostsCluster, Settings
from m5ws.engines import submission
from m5ws.engines.interface import NodeOutput
from m5ws.engines.submission import Submission
from m5ws.engines.task_files import TaskFile
from m5ws.errors import M5Error, UsageError
from m5ws.library import actions, crossings
from m5ws.library.crossings import Crossing
from m5ws.records.job import Cancel, Job
from m5ws.records.run import Run
from m5ws.repository.references import jobs, notes, runs
from m5ws.repository.repository import Repository
from m5ws.runs import liveness
from m5ws.secret_scan import masked
from m5ws.store import open_store
from m5ws.workspace import Workspace


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A submitted job without its settings, and its id in the engine, or the command that submits its file."""

    job: Job
    id: str


class Cluster:
    """A cluster of a workspace, by its name in `m5ws.toml`.

    Raises UsageError for an unknown name, and for a store in a directory that the nodes may not have.
    """

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace, self._name = workspace, name
        self._settings = _settings_of_nodes(workspace)
        self._own = submission.cluster_of(self._settings, name)
        if self._own.cache:
            store = msgspec.structs.replace(self._settings.store, cache=self._own.cache)
            self._settings = msgspec.structs.replace(self._settings, store=store)
        self._engine = submission.engine_of(self._own)
        if isinstance(self._engine, TaskFile):
            # No snapshot captures a file in this folder.
            self._engine = msgspec.structs.replace(self._engine, folder=workspace.home / "jobs")
        _refuse_private_store(workspace, self._own.shared, name)

    @property
    def most_nodes(self) -> int | None:
        """The number of hosts; None for a cluster with a scheduler."""
        return len(self._own.hosts) if isinstance(self._own, HostsCluster) else None

    def plan(
        self, subject: str, nodes: int, options: tuple[str, ...] = (), command: tuple[str, ...] = ()
    ) -> Submission:
        """Return a job about a run or a snapshot. Nothing is published or started."""
        place = (self._name, subject, self._workspace.store_url)
        return submission.plan(self._settings, *place, nodes, options, command)

    def plan_run(self, repo: Repository, run: Run, nodes: int, env: tuple[str, ...]) -> Submission:
        """Return the job of a run with the given `--env`, after a job that prefetches if the cluster has one.

        Raises UsageError for a run that the nodes cannot train.
        """
        planning.refuse_unfit(repo, run, self._workspace.environment, nodes)
        planned = self.plan(run.id, nodes, tuple(word for each in env for word in ("--env", each)))
        first = submission.plan_prefetch(self._settings, self._name, run.id, self._workspace.store_url)
        return msgspec.structs.replace(planned, after=first)

    @property
    def queues(self) -> tuple[BatchQueue, ...]:
        """The next queues, to which a job moves while `m5ws wait` runs."""
        return self._own.elsewhere if isinstance(self._own, BatchCluster) else ()

    def crossing(self, repo: Repository, run: Run) -> Crossing | None:
        """Return the bytes of a run that cross regions; None if neither its store nor its data is in S3."""
        return crossings.of_run(repo, run, self._own)

    def refuse_unaccepted(self, planned: Submission) -> None:
        """Raise EngineUnavailable if the engine does not answer, or would not accept the job and the job before it."""
        for each in filter(None, (planned.after, planned)):
            self._engine.check(each.request, each.job.script)

    def check_nodes(self, nodes: int | None) -> list[NodeOutput]:
        """Run `m5ws preflight` on nodes of the cluster, and return the outputs. Raises EngineUnavailable."""
        words = ("preflight", "--store", self._workspace.store_url, "--json")
        return self._engine.run(submission.command_on_node(self._own, *words), nodes or self.most_nodes or 1)

    def start(self, repo: Repository, planned: Submission) -> Submitted:
        """Publish a job and start it, after the job that it waits for. Raises EngineUnavailable."""
        after = self.start(repo, planned.after).id if planned.after is not None else None
        job = msgspec.structs.replace(planned.job, created_s=repo.store.now(), **self._workspace.creator())
        # The record first: a submission that is killed leaves no job that nobody finds.
        jobs.publish(repo, job)
        # An answer may be lost, and not the job: then its agents read the request, and begin nothing.
        with cancelling(self._workspace.store_url, job.run, job.name):
            identifier = self._engine.submit(planned.request, job.script, after)
        return Submitted(job=msgspec.structs.replace(job, settings=""), id=identifier)

    def start_run(self, repo: Repository, run: Run, planned: Submission, why: str | None) -> Submitted:
        """Publish a run if it is new, with its expectation, and start its job. Raises EngineUnavailable."""
        if run.id not in runs.ids(repo):
            runs.publish(repo, self._workspace.ports(repo).sign(run))
            if why is not None:
                notes.publish(repo, actions.write_note(self._workspace, run.id, why, kind="why"))
        return self.start(repo, planned)


def refuse_alive(workspace: Workspace, repo: Repository, run_id: str) -> None:
    """Raise UsageError if a job of a run waits or runs. An engine that does not answer here hinders nothing."""
    job = liveness.find_alive(workspace.settings, repo, jobs.of_attempts(repo, run_id))[0]
    if job is not None:
        raise UsageError(
            f"job {job.name} of run {run_id} waits or runs on {job.cluster}",
            hint=f"`m5ws wait {run_id}` waits for its end, and `m5ws cancel {run_id}` ends it.",
        )


@contextmanager
def cancelling(store_url: str, run: str, job: str) -> Iterator[None]:
    """Cancel a job at an error in the block: no agent begins, or this agent cannot and the other agents would wait."""
    try:
        yield
    except Exception as error:
        with suppress(M5Error, OSError):
            repo = Repository.open(open_store(store_url))
            cancel_unbegun(repo, jobs.load(repo, run, job), error)
        raise


def cancel_unbegun(repo: Repository, job: Job, error: Exception) -> None:
    """Publish why a job cannot begin an attempt: its other agents read it, and `m5ws show` prints it."""
    own = {"created_s": repo.store.now(), "host": socket.gethostname(), "problem": str(error)}
    jobs.cancel(repo, msgspec.structs.replace(Cancel(run=job.run, attempt=0, jobs=(job.name,)), **own))


def workspace_of(store_url: str, run: str, job: str, scratch: Path, environment: Mapping[str, str]) -> Workspace:
    """Return the workspace of a job on this node, below its scratch folder. Raises NotFound."""
    record = jobs.load(Repository.open(open_store(store_url)), run, job)
    root = scratch / "workspace"
    root.mkdir(parents=True, exist_ok=True)
    settings = msgspec.json.decode(record.settings, type=Settings)
    return Workspace(root, settings, dict(environment), scratch, record)


def _settings_of_nodes(workspace: Workspace) -> Settings:
    """Return the settings for agents on other machines, which have no checkout.

    MLflow's server is theirs too, but not a database in a file. A password in its URI stays here: agents then read
    MLFLOW_TRACKING_URI on their nodes.
    """
    own = workspace.settings
    uri = workspace.tracking_uri if own.mlflow.enabled else ""
    is_server = uri.startswith("http")
    mlflow = msgspec.structs.replace(
        own.mlflow,
        enabled=is_server,
        tracking_uri=uri if is_server and masked(uri) == uri else None,
        experiment=own.mlflow.experiment or workspace.name,
    )
    url = own.store.url if workspace.store_dir is None else os.fspath(workspace.store_dir)
    store = msgspec.structs.replace(own.store, url=url)
    return msgspec.structs.replace(own, name=workspace.name, extends=None, store=store, mlflow=mlflow)


def _refuse_private_store(workspace: Workspace, shared: tuple[str, ...], cluster: str) -> None:
    """Raise UsageError for a store in a directory that is in none of the folders `shared`, which nodes mount."""
    folder = workspace.store_dir
    if folder is None or any(folder.resolve().is_relative_to(each) for each in shared):
        return
    raise UsageError(
        f"the store {folder} is a directory of this machine, and the nodes of {cluster} may not have it",
        hint='Use a store in S3, or name the mounted folder that contains the store: shared = ["FOLDER"] in '
        f"[clusters.{cluster}]",
    )
