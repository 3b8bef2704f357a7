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
_PREFIXES = "import sys; print(sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, sep='\\n')"


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
    is_own = python == sys.executable
    places = known_places.find(context, environment, None if is_own else _folders(python))
    for cache in places.caches:
        Path(cache).mkdir(parents=True, exist_ok=True)
    programs = [place for name in _PROGRAMS for place in environment.get(name, "").split(os.pathsep)]
    editable = _editable(context.author_dir) if is_own else ()
    read = (*places.python, *editable, *places.system, *places.credentials, *programs)
    own = (context.work_dir, str(folder), "/dev/shm", *_own(context, environment))  # noqa: S108  no temporary file
    write = (*own, *places.caches, *filter(_is_character_device, places.devices))
    hosts = known_places.hosts(context, environment)
    return Access(read=_real(read), write=_real(write), hosts=tuple(sorted(hosts)))


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


def _folders(python: str) -> list[str]:
    """Return the folders of a rebuilt environment: all rebuilt environments with m5ws, and the base installation."""
    done = subprocess.run([python, "-I", "-c", _PREFIXES], capture_output=True, text=True, check=True)
    return [str(Path(python).parents[3]), *done.stdout.splitlines()]


def _editable(author: str) -> Iterator[str]:
    """Yield the folders of editable installs outside of the author's checkout. A rank judges each import from there.

    The first is the folder that Python searches for m5ws.
    """
    yield str(Path(known_places.__file__).parents[2])
    checkout = Path(author).resolve()
    for origin in distributions.origins(checkout).values():
        if origin.kind == "editable" and origin.local:
            folder = Path(unquote(urlsplit(origin.url).path)).resolve()
            if not checkout.is_relative_to(folder):
                yield str(folder)


def _is_character_device(place: str) -> bool:
    """Return True for a device that is no disk, and for a folder of devices."""
    try:
        mode = os.stat(place).st_mode
    except OSError:
        return False
    return place.startswith("/dev/") and (stat.S_ISCHR(mode) or stat.S_ISDIR(mode))


def _real(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(place) for place in places if os.path.isabs(place)))
