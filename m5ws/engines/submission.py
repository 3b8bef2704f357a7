"""A job for a run: checked, published and submitted."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from m5ws.config.settings import (
    BatchCluster,
    Cluster,
    DstackCluster,
    HostsCluster,
    KubernetesCluster,
    Settings,
    SkyPilotCluster,
    SlurmCluster,
)
from m5ws.engines.batch import Batch
from m5ws.engines.hosts import Hosts
from m5ws.engines.interface import Engine, JobRequest
from m5ws.engines.kubernetes import Kubernetes
from m5ws.engines.slurm import Slurm
from m5ws.engines.task_files import TaskFile
from m5ws.errors import UnknownSchema, UsageError
from m5ws.records.job import Job
from m5ws.repository.references import jobs

_ENGINES: dict[type[Cluster], Callable[[Any], Engine]] = {
    SlurmCluster: Slurm,
    HostsCluster: Hosts,
    BatchCluster: Batch,
    KubernetesCluster: Kubernetes,
    SkyPilotCluster: TaskFile,
    DstackCluster: TaskFile,
}


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered job that is not submitted yet. It waits for the end of the job `after`, which is submitted first."""

    job: Job
    request: JobRequest
    after: "Submission | None" = None


def engine_of(cluster: Cluster) -> Engine:
    """Return the engine of a cluster."""
    return _ENGINES[type(cluster)](cluster)


def cluster_of(settings: Settings, name: str) -> Cluster:
    """Return a cluster of the settings. Raises UsageError."""
    if name not in settings.clusters:
        known = ", ".join(settings.clusters) or "none"
        raise UsageError(f"m5ws.toml has no [clusters.{name}] (known: {known})")
    return settings.clusters[name]


def engine_of_job(settings: Settings, job: Job) -> Engine:
    """Return the engine of a job, with the cluster of these settings, or of the job's if these lack it.

    A job stays on the hosts, in the queue of AWS Batch, or in the Kubernetes of its submission. Raises UnknownSchema
    for settings of another version of m5ws.
    """
    own = settings.clusters.get(job.cluster)
    if not isinstance(own, SlurmCluster) or job.engine != "slurm":
        try:
            own = cluster_of(msgspec.json.decode(job.settings, type=Settings), job.cluster)
        except (msgspec.MsgspecError, UsageError) as error:
            raise UnknownSchema(f"this m5ws cannot use the settings of job {job.name}: {error}") from error
    if isinstance(own, HostsCluster):
        own = msgspec.structs.replace(own, hosts=own.hosts[: job.nodes])
    return engine_of(own)


def plan(
    settings: Settings,
    cluster: str,
    run: str,
    store_url: str,
    nodes: int,
    options: tuple[str, ...],
    command: tuple[str, ...] = (),
    name: str | None = None,
) -> Submission:
    """Return a job on a cluster. Nothing is published or started. Raises UsageError.

    `settings` are for the nodes, and `options` for their agents. Without a `name`, the job gets a new name.
    """
    own = cluster_of(settings, cluster)
    name = name or jobs.new_name(run)
    agent = command_on_node(own, "agent", run, "--store", store_url, "--job", name, *options)
    request = JobRequest(name=name, run=run, nodes=nodes, agent=agent)
    job = Job(
        run=run,
        name=name,
        cluster=cluster,
        engine=own.__struct_config__.tag,  # type: ignore[arg-type]
        nodes=nodes,
        settings=msgspec.json.encode(settings).decode(),
        script=engine_of(own).render(request),
        command=command,
        options=options,
        created_s=0.0,
    )
    return Submission(job=job, request=request)


def command_on_node(cluster: Cluster, *words: str) -> tuple[str, ...]:
    """Return the words that run a command of m5ws on a node, with the scratch folder and the region of the cluster."""
    scratch = ("--scratch", cluster.scratch) if cluster.scratch else ()
    # boto3 finds the credentials of an instance by itself, and not its region.
    region = ("env", f"AWS_DEFAULT_REGION={cluster.region}") if cluster.region else ()
    return (*region, cluster.python or sys.executable, "-P", "-m", "m5ws", *words, *scratch)


def plan_prefetch(settings: Settings, cluster: str, run: str, store_url: str) -> Submission | None:
    """Return a job that fills the cache for a run, in the partition of the cluster for this; None if it has none.

    Raises UsageError for a cache that other nodes do not have.
    """
    own = cluster_of(settings, cluster)
    if not isinstance(own, SlurmCluster) or own.prefetch is None:
        return None
    cache = Path(settings.store.cache)
    if not any(cache.is_relative_to(folder) for folder in own.shared):
        raise UsageError(
            f"clusters.{cluster}.prefetch fills a cache that no other node has",
            hint=f"Set [store] cache to a folder that all nodes mount, and name it in shared of [clusters.{cluster}].",
        )
    # Options of the run's own job may require GPUs, which this partition does not have.
    small = SlurmCluster(
        python=own.python,
        scratch=own.scratch,
        setup=own.setup,
        login=own.login,
        account=own.account,
        output=own.output,
        region=own.region,
        partition=own.prefetch,
    )
    settings = msgspec.structs.replace(settings, clusters={**settings.clusters, cluster: small})
    return plan(settings, cluster, run, store_url, 1, (), ("prefetch", run))
