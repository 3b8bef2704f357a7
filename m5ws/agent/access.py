"""The limits of an attempt under `[run] inputs = "pinned"`: places, hosts and variables of its processes.

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
from m5ws.work import temporary

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables that switch off the downloads of Hugging Face's libraries
(https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables,
https://huggingface.co/docs/transformers/installation#offline-mode).
"""
_PROGRAMS = ("PATH", "LD_LIBRARY_PATH")
_SQLITE = "sqlite:///"
_FOLDERS = "import sys; print(sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *sys.path, sep='\\n')"
_PREFIXES = 4
"""Number of the first folders that contain whole installations."""


def limit(ports: Ports, plan: AttemptPlan) -> AttemptPlan:
    """Return the plan of an attempt with its limits, if `[run] inputs` is pinned.

    Makes the temporary folder of the attempt, and missing caches of compiled code, which its processes cannot make.
    """
    if ports.inputs == "recorded":
        return plan
    folder = temporary.make(plan.directory)
    request = msgspec.structs.replace(plan.request, environment=plan.request.environment | _variables(folder))
    environment = {name: value for name, value in ports.environment.items() if name not in request.unset}
    access = _find(plan.context, environment | request.environment, ports.python, folder)
    return msgspec.structs.replace(
        plan,
        request=msgspec.structs.replace(request, access=access),
        context=msgspec.structs.replace(plan.context, access=access),
    )


def _variables(folder: Path) -> dict[str, str]:
    """Return the variables of a temporary folder, and of hubs that are offline.

    Hugging Face's libraries write to HF_HOME even without a download.
    """
    return {"TMPDIR": str(folder), "HF_HOME": str(folder / "huggingface")} | dict.fromkeys(_OFFLINE, "1")


def _find(context: Context, environment: Mapping[str, str], python: str, folder: Path) -> Access:
    """Return the access of an attempt. Raises UsageError if the author's checkout would be readable."""
    places = known_places.find(context, environment, _python(python, environment, Path(context.author_dir).resolve()))
    for cache in places.caches:
        Path(cache).mkdir(parents=True, exist_ok=True)
    read = _real((*places.python, *places.system, *places.credentials))
    own = (context.work_dir, str(folder), "/dev/shm", *_own(context, environment))  # noqa: S108  no temporary file
    write = _real((*own, *places.caches, *filter(_is_character_device, places.devices)))
    if around := [place for place in (*read, *write) if _is_below(os.path.realpath(context.author_dir), place)]:
        raise UsageError(
            f'[run] inputs = "pinned" cannot refuse files of the workspace inside of {around[0]}',
            hint='Move the workspace, or set [run] inputs = "recorded" in m5ws.toml.',
        )
    return Access(read=read, write=write, hosts=tuple(sorted(known_places.hosts(context, environment))))


def _own(context: Context, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the places to which m5ws's own code and MLflow write in a rank.

    SQLite makes files beside a database. The default database is beside the work of other runs, so it is left out.
    """
    attempt = Path(context.spool_dir).parent
    yield from (str(attempt), str(attempt.parent / "ranks"), context.copies, context.references)
    if not context.store.startswith("s3://"):
        yield context.store.removeprefix("file://")
    tracking = environment.get("MLFLOW_TRACKING_URI", "")
    if tracking.startswith(_SQLITE):
        folder = Path(tracking.removeprefix(_SQLITE)).absolute().parent
        if not attempt.is_relative_to(folder):
            yield str(folder)


def _python(python: str, environment: Mapping[str, str], checkout: Path) -> Iterator[str]:
    """Yield the folders of programs, and of an interpreter: its installations, and its import path without PYTHONPATH.

    Folders in the checkout are left out, such as an editable install: ranks import the snapshot's copies. Its
    environment may lie there. A rank judges each import from any other editable install.
    """
    yield str(Path(known_places.__file__).parents[2])
    done = subprocess.run([python, "-E", "-P", "-c", _FOLDERS], capture_output=True, text=True, check=True)
    folders = done.stdout.splitlines()
    prefixes = folders[:_PREFIXES]
    for name in _PROGRAMS:
        folders += environment.get(name, "").split(os.pathsep)
    if python == sys.executable:
        origins = [origin for origin in distributions.origins(checkout).values() if origin.local]
        folders += [unquote(urlsplit(origin.url).path) for origin in origins if origin.kind == "editable"]
    else:
        # A rebuilt environment is beside the other rebuilt environments, and beside the copy of m5ws in its ranks.
        folders.append(str(Path(python).parents[3]))
    for folder in filter(os.path.isabs, folders):
        is_environment = any(_is_below(folder, prefix) for prefix in prefixes)
        if is_environment or os.path.realpath(folder) == str(checkout) or not _is_below(folder, str(checkout)):
            yield folder


def _is_below(path: str, folder: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _is_character_device(place: str) -> bool:
    """Return True for a device that is no disk, and for a folder of devices."""
    try:
        mode = os.stat(place).st_mode
    except OSError:
        return False
    return place.startswith("/dev/") and (stat.S_ISCHR(mode) or stat.S_ISDIR(mode))


def _real(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(place) for place in places if os.path.isabs(place)))
