"""The rendered launch of an attempt: its command line, and the environment of its processes.

Processes inherit the caller's environment, but no variable of a rank or of a world: the launcher sets them, or none
exists. m5ws reads no such variable that its own launch did not set.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from m5ws.config.commands import launchers
from m5ws.launch import import_path
from m5ws.launch.network import interface_to
from m5ws.records import determinism
from m5ws.records.launch import Context, LaunchRequest, Place

CONTEXT_VARIABLE = "M5WS_CONTEXT"
_OF_RANKS = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "GROUP_NAME"),
        *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "NODE_RANK", "NNODES", "BASE_RANK", "CROSS_RANK", "CROSS_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMIX_RANK", "PALS_RANKID"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"),
        *("SLURM_TASKS_PER_NODE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_TASKS"),
        *("SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE"),
    )
)
_PREFIXES_OF_RANKS = ("TORCHELASTIC_", "PET_", "OMPI_COMM_WORLD_", "PMI_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_")
"""torchrun reads its options from PET_…; the other variables number the processes of Open MPI, MPICH, MVAPICH and
jsrun.
"""


def of_ranks(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables of an environment that launchers and frameworks read as numbers of ranks."""
    return tuple(sorted(name for name in environment if name in _OF_RANKS or name.startswith(_PREFIXES_OF_RANKS)))


def render(
    context: Context,
    directory: Path,
    environment: Mapping[str, str],
    tracking: Mapping[str, str],
    python: str,
    patience_s: int,
    place: Place,
) -> LaunchRequest:
    """Return the launch of an attempt in `directory`. `python` starts its ranks, with `environment` and `tracking`.

    The ranks have `patience_s` seconds to end if the caller dies. `place` is the place of this machine.
    """
    spec = context.spec
    nproc = spec.nproc // place.nodes if spec.nproc is not None else None
    prepare: tuple[str, ...] = ()
    if spec.trainer == "deepspeed":
        prepare = (python, "-m", "m5ws.training.backends.deepspeed.cpu_adam", "--try")
    return LaunchRequest(
        argv=launchers.argv(spec.command, spec.trainer, nproc, python, is_alone=place.nodes == 1),
        cwd=context.work_dir,
        environment=dict(tracking)
        | _of_launcher(context, environment, patience_s, place)
        | _added(context, directory, environment, python),
        # Of all nodes, the store has the logs of launchers under their names.
        log=str(Path(context.log_dir) / (f"launcher-{place.node}.log" if place.node else "launcher.log")),
        prepare=prepare,
        unset=of_ranks(environment),
        processes=str(Path(context.spool_dir) / "processes"),
        patience_s=patience_s,
    )


def _of_launcher(context: Context, environment: Mapping[str, str], patience_s: int, place: Place) -> dict[str, str]:
    """Return the variables for launchers. One process without a launcher has none of them.

    torchrun reads its options from PET_NAME. Its static rendezvous gives the nodes their ranks by their numbers.
    """
    if context.spec.trainer in ("python", "command"):
        return {}
    # When a scheduler ends torchrun, torchrun waits this long before it kills the ranks.
    variables = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(patience_s)}
    if place.nodes > 1:
        numbers = {"PET_NNODES": place.nodes, "PET_NODE_RANK": place.node, "PET_MASTER_PORT": place.port}
        variables |= {name: str(number) for name, number in numbers.items()} | {"PET_MASTER_ADDR": place.master}
    is_chosen = sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in environment
    if not is_chosen and (place.nodes > 1 or context.spec.nproc is not None):
        # A machine's own name may have no address, or an address that other machines cannot reach.
        variables["GLOO_SOCKET_IFNAME"] = interface_to(place.master) if place.nodes > 1 else "lo"
    return variables


def _added(context: Context, directory: Path, environment: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the variables of all processes: settings that fix bits, the context's path, and the run's own.

    The shell's folders of the author's checkout on PYTHONPATH are left out: the run has them if its spec does.
    """
    added = determinism.environment(context.determinism) | {
        CONTEXT_VARIABLE: str(directory / "context"),
        # It keeps a random id in the user's home, which differs from machine to machine.
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if (programs := _programs(environment, python)) is not None:
        added["PATH"] = programs
    if environment.get(import_path.VARIABLE):
        folders = import_path.entries(environment, Path(context.author_dir))
        added[import_path.VARIABLE] = os.pathsep.join(filter(os.path.isabs, folders))
    return added | context.spec.environment | import_path.at(context.spec.environment, context.spec.directory)


def _programs(environment: Mapping[str, str], python: str) -> str | None:
    """Return PATH with the programs of the virtual environment of `python` first, as activating it does; else None.

    DeepSpeed compiles with the first `ninja` on PATH, and compiles again if another version was used before.
    """
    own, path = str(Path(python).parent), environment.get("PATH", os.defpath)
    is_virtual = os.path.isabs(python) and Path(own).with_name("pyvenv.cfg").exists()
    return f"{own}{os.pathsep}{path}" if is_virtual and path.split(os.pathsep)[0] != own else None
