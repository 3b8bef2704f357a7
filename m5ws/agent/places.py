"""The place of this machine among the nodes of an attempt, from the variables of the program that started it.

Any scheduler can start an agent on each node: it sets the variables M5WS_…, which come first. The variables of Slurm
are in sbatch(1) and srun(1), and its job script sets M5WS_MASTER. AWS Batch names the address of the main node to all
nodes but the main node (https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html). A Job of Kubernetes has
JOB_COMPLETION_INDEX, and its manifest sets the other variables (engines/kubernetes.py). SkyPilot lists the addresses of
all nodes in the order of their numbers (https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html),
and dstack names the address of node 0 (https://dstack.ai/docs/concepts/tasks#distributed-tasks).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from string import Template

from m5ws.errors import UsageError
from m5ws.launch import network
from m5ws.records.launch import Place, Saving

_HINT = "Set M5WS_NODE, M5WS_NODES, M5WS_MASTER (HOST:PORT of node 0) and M5WS_JOB on each node."
_ENGINES = (
    ("", "M5WS_NODE", "M5WS_NODES", "M5WS_JOB", ""),
    ("slurm:", "SLURM_NODEID", "SLURM_NNODES", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("batch:", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ATTEMPT"),
    ("kubernetes:", "JOB_COMPLETION_INDEX", "M5WS_NODES", "M5WS_JOB", "M5WS_RESTART"),
    # Neither names the number of a restart.
    ("skypilot:", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_TASK_ID", ""),
    ("dstack:", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_RUN_ID", ""),
)
"""The prefix of an engine's jobs, and its variables: the node's number, the number of nodes, the job, and the number of
its restart.
"""
_MAIN, _ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_INDEX", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
_SKYPILOT, _DSTACK = "SKYPILOT_NODE_IPS", "DSTACK_MASTER_NODE_IP"
_PORT = 29_500
"""Where no variable names a port, a job has its nodes or network interfaces for itself."""


def read(environment: Mapping[str, str]) -> Place:
    """Return the place of this machine. Raises UsageError for incomplete variables."""
    engine = next((each for each in _ENGINES if each[1] in environment), None)
    if engine is None:
        raise UsageError("no variable names the place of this node", hint=_HINT)
    prefix, own, count, name, restart = engine
    try:
        node, nodes = int(environment[own]), int(environment[count])
        job = f"{prefix}{environment[name]}"
        if restart:
            job += f".{environment.get(restart) or 0}"
        master, _, port = (environment.get("M5WS_MASTER") or _main_node(environment, own)).rpartition(":")
        place = Place(node=node, nodes=nodes, master=master.strip("[]"), port=int(port), job=job)
    except KeyError as error:
        raise UsageError(f"{own} is set, and {error.args[0]} is not", hint=_HINT) from error
    except ValueError as error:
        raise UsageError(f"the place of this node has no valid numbers: {error}", hint=_HINT) from error
    if not 0 <= place.node < place.nodes or not place.master or not 0 < place.port < 2**16 - 1:
        raise UsageError(f"node {node} of {nodes} with {master}:{port} is no place", hint=_HINT)
    return place


def _main_node(environment: Mapping[str, str], own: str) -> str:
    """Return the address of node 0, as its engine names it. Raises KeyError without it, UsageError."""
    if own.startswith("SKYPILOT_"):
        return f"{''.join(environment[_SKYPILOT].split()[:1])}:{_PORT}"
    if own.startswith("DSTACK_"):
        return f"{environment[_DSTACK]}:{_PORT}"
    if _MAIN not in environment:
        raise KeyError("M5WS_MASTER")
    if environment[_MAIN] != "0":
        raise UsageError(
            f"the main node of this job is node {environment[_MAIN]}, and m5ws leads on node 0",
            hint="Set mainNode = 0 in the job definition.",
        )
    host = network.address_here() if environment[own] == "0" else environment[_ADDRESS]
    return f"{host}:{_PORT}"


def without_restart(job: str) -> str:
    """Return the job of a place, without the number of the job's restart."""
    counted = any(restart and job.startswith(prefix) for prefix, *_, restart in _ENGINES)
    return job.rpartition(".")[0] if counted else job


def make_scratch(parent: Path, node: int) -> Path:
    """Return the folder of a node's agent on its local disk, below `parent`, which other users may write to.

    Raises UsageError if another user made the folder.
    """
    return make_private(own_folder(parent), "Give another folder with --scratch.") / f"node-{node}"


def own_folder(parent: str | Path) -> Path:
    """Return the folder of this user in a folder that other users may write to."""
    return Path(os.path.abspath(parent)) / f"m5ws-{os.getuid()}"


def folder_of_copies(saving: Saving, environment: Mapping[str, str]) -> str:
    """Return this user's folder below `[checkpoint] local`; empty without this setting, or without its variables.

    The variables are of the nodes, and other machines resume runs too.
    """
    parent = Template(saving.local or "").safe_substitute(environment)
    return "" if "$" in parent or not parent else str(own_folder(parent))


def make_private(own: Path, hint: str) -> Path:
    """Make a folder that only this user may use, and return it. Raises UsageError for another user's, OSError."""
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = own.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(f"{own} is not private to this user", hint=hint)
    return own
