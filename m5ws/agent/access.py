"""The limits of an attempt under `[run] inputs = "pinned"`: places and variables of its processes.

They read the work directory, which has the pinned files, and places that no snapshot contains: Python, the system, the
store. They write only to folders of the attempt, to the store, to `/dev/shm` and to caches of compiled code. The kernel
refuses all else (launch/landlock.py). Hosts are limited in Python code alone (docs/design/0045-denied-reads.md).
"""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.environment.observe import distributions
from m5ws.errors import UsageError
from m5ws.launch import known_places
from m5ws.records.launch import Access, Context
from m5ws.work import directories

# https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE")
_FOLDERS = "import sys; print(sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *sys.path, sep='\\n')"
"""Prints the folders of whole installations, which are four, and the import path."""


def limit(ports: Ports, plan: AttemptPlan) -> AttemptPlan:
    """Return the plan of an attempt with its limits, if `[run] inputs` is pinned.

    Makes the temporary folder of the attempt, and missing caches of compiled code, which its processes cannot make.
    Raises UsageError if the processes may read the author's checkout.
    """
    if ports.inputs == "recorded":
        return plan
    folder = str(directories.make_temporary(plan.directory))
    variables = {"TMPDIR": folder, "HF_HOME": f"{folder}/huggingface", "GIT_CONFIG_GLOBAL": os.devnull}
    variables |= dict.fromkeys(_OFFLINE, "1")
    request = msgspec.structs.replace(plan.request, environment=plan.request.environment | variables)
    environment = dict(ports.environment) | request.environment
    if request.image is not None:
        # A container sees its image and the folders of the attempt, nothing else.
        access = Access(read=(os.sep,), write=(os.sep,))
    else:
        access = _find(plan.context, environment, ports.python)
        request = msgspec.structs.replace(request, access=access)
    return msgspec.structs.replace(plan, request=request, context=msgspec.structs.replace(plan.context, access=access))


def _find(context: Context, environment: Mapping[str, str], python: str) -> Access:
    """Return the places of processes on this machine. Raises UsageError as `limit`."""
    checkout, attempt = os.path.realpath(context.author_dir), os.path.dirname(context.spool_dir)
    places = known_places.find(context, environment, _python(python, environment, checkout))
    made = (*places.caches, *_database(environment, attempt))
    for folder in made:
        Path(folder).mkdir(parents=True, exist_ok=True)
    read = (*context.remotes, *places.python, *places.system, *places.credentials)
    store = context.store.removeprefix("file://")
    own = (context.work_dir, attempt, f"{os.path.dirname(attempt)}/ranks", store, context.copies, context.references)
    devices = [place for place in places.devices if place.startswith("/dev/") and os.path.exists(place)]
    no_disks = [place for place in devices if not stat.S_ISBLK(os.stat(place).st_mode)]
    used = (*own, context.files, context.local, environment["TMPDIR"], *made, "/dev/shm", *no_disks)  # noqa: S108  no temporary file
    write = tuple(dict.fromkeys(os.path.realpath(place) for place in used if os.path.isabs(place)))
    if around := [place for place in (*read, *write) if _is_below(checkout, place)]:
        raise UsageError(
            f'[run] inputs = "pinned" cannot refuse files of the workspace inside of {around[0]}',
            hint='Move the workspace, or set [run] inputs = "recorded" in m5ws.toml.',
        )
    return Access(read=read, write=write)


def _database(environment: Mapping[str, str], attempt: str) -> list[str]:
    """Return the folder of MLflow's SQLite file, where SQLite makes files, unless it has the work of other runs too."""
    folder = os.path.dirname(environment.get("MLFLOW_TRACKING_URI", "").partition("sqlite:///")[2])
    return [folder] if folder and not _is_below(attempt, folder) else []


def _python(python: str, environment: Mapping[str, str], checkout: str) -> Iterator[str]:
    """Yield the folders of programs, and of an interpreter: its installations, and its import path without PYTHONPATH.

    Folders in the checkout are left out, such as an editable install: ranks import the snapshot's copies. Its
    environment may lie there. A rank judges each import from any other editable install.
    """
    yield str(Path(known_places.__file__).parents[2])
    done = subprocess.run([python, "-E", "-P", "-c", _FOLDERS], capture_output=True, text=True, check=True)
    programs = os.pathsep.join(environment.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH"))
    folders = [*done.stdout.splitlines(), *programs.split(os.pathsep)]
    if python == sys.executable:
        origins = [each for each in distributions.origins(Path(checkout)).values() if each.local]
        folders += [unquote(urlsplit(origin.url).path) for origin in origins if origin.kind == "editable"]
    else:
        # A rebuilt environment is beside the other rebuilt environments, and beside the copy of m5ws in its ranks.
        folders.append(str(Path(python).parents[3]))
    for folder in folders:
        if not _is_below(folder, checkout) or any(_is_below(folder, prefix) for prefix in folders[:4]):
            yield folder


def _is_below(path: str, folder: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
