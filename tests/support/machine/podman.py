"""A Podman with its own storage, and an image of this interpreter's packages, without a registry."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.util import cache_from_source
from io import BytesIO
from pathlib import Path

import msgspec

import m5ws
from tests.conftest import loud_skip

PROGRAMS = ("podman", "runc")
_MOST_PROCESSES = 32768
_PREFIX = Path(sys.base_prefix)
_LIBRARY = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}")
_PYTHON = _PREFIX / "bin" / _LIBRARY.name
_SITE = "import site; print(site.getsitepackages()[0])"
"""A distribution's own Python has it in another folder."""
_UNUSED = re.compile(
    r"/(include|test|tests|benchmarks|idlelib|tkinter|ensurepip|pydoc_data)/"
    r"|/bin/(test_|protoc)[^/]*$|\.(a|pyi|h|cmake|pth)$|/libpython3\.?\d*\.so$"
)
_NOT_IMPORTED = {"gitpython", "huggingface-hub", "setuptools", "pygments"}
"""Requirements that no rank imports."""


class Storage(msgspec.Struct, frozen=True):
    """The variables of a Podman with a storage of its own, and an image there, by digest."""

    variables: dict[str, str]
    image: str

    def containers(self) -> list[str]:
        """Return the names of all containers, running or not."""
        return call(self.variables, "ps", "--all", "--format", "{{.Names}}").split()


@contextmanager
def usable() -> Iterator[dict[str, str]]:
    """Yield the variables as `own`, or skip the test loudly if no container starts on this machine."""
    if reason := _missing():
        loud_skip(reason)
    with own() as variables:
        if reason := _refusal(variables):
            loud_skip(reason)
        yield variables


def _refusal(variables: Mapping[str, str]) -> str | None:
    """Return the error of Podman if it starts no container; None if it starts one."""
    program = Path("/bin/true")
    try:
        image = load(
            variables, "localhost/m5ws/trial:1", {name: Path(name) for name in (*_libraries([program]), str(program))}
        )
        call(variables, "run", "--rm", "--network", "host", "--security-opt", "label=disable", image, str(program))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"podman starts no container here: {getattr(error, 'stderr', None) or error}"
    return None


def _missing() -> str | None:
    """Return the reason why Podman cannot be tried here; None if it can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"no {' and no '.join(absent)} on PATH (apt-get install {' '.join(PROGRAMS)})"
    return None if os.geteuid() == 0 else "Podman is tried as root"


@contextmanager
def own() -> Iterator[dict[str, str]]:
    """Yield the variables of a Podman with a storage of its own, which is removed after the block.

    The path of its folder is short. With a path of 52 characters, each start of a container took 20 s longer.
    """
    folder = Path(tempfile.mkdtemp(prefix="m5ws-podman-"))
    # A machine may refuse the limits that Podman sets for its containers.
    files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    processes = _MOST_PROCESSES if processes == resource.RLIM_INFINITY else min(processes, _MOST_PROCESSES)
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'
        f'[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\ntmp_dir = "{folder}/tmp"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    variables = {"CONTAINERS_CONF": f"{folder}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf"}
    try:
        yield variables
    finally:
        call(variables, "rm", "--all", "--force", "--time", "0")
        call(variables, "rmi", "--all", "--force")
        subprocess.run(["umount", folder / "root/overlay"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def call(variables: Mapping[str, str], *words: str) -> str:
    """Run Podman, and return its output."""
    command, environment = ["podman", *words], os.environ | dict(variables)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def load(variables: Mapping[str, str], name: str, files: Mapping[str, Path]) -> str:
    """Import an image with these files by their paths, `python3` on PATH, and return its name by digest."""
    command = ["podman", "import", "--quiet", "-", name]
    environment = os.environ | dict(variables)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        with tarfile.open(fileobj=process.stdin, mode="w|") as archive:
            for path, file in sorted(files.items()):
                archive.add(file.resolve(), path.lstrip("/"), recursive=False)
            _add_rest(archive)
        process.stdin.close()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return str(json.loads(call(variables, "image", "inspect", "--format", "{{json .RepoDigests}}", name))[0])


def files_of(*packages: str) -> dict[str, Path]:
    """Return the files of an image: this Python, `env`, and distributions with their requirements."""
    asked = subprocess.run([_PYTHON, "-c", _SITE], capture_output=True, text=True, check=True)
    site = Path(asked.stdout.strip())
    # Jobs of m5ws set the region of a node by `env`, which each distribution of Linux has.
    files: dict[str, Path] = {str(_PYTHON): _PYTHON, "/usr/bin/env": Path("/usr/bin/env")}
    files |= {str(file): file for file in (_PREFIX / "lib").glob("libpython*.so*")}
    library = _PREFIX / _LIBRARY
    files |= {str(file): file for file in library.rglob("*") if file.is_file() and "site-packages" not in file.parts}
    for each in _closure(packages):
        files |= {str(site / relative): file for relative, file in _files(metadata.distribution(each))}
    if "m5ws" in packages:
        # Installed as a link to the checkout.
        folder = Path(m5ws.__file__).parent
        files |= {str(site / "m5ws" / file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    files = {name: file for name, file in files.items() if not _UNUSED.search(name)}
    files |= {name: Path(name) for name in _libraries(files.values())}
    return files


def _add_rest(archive: tarfile.TarFile) -> None:
    """Add /tmp, the users, and the link `python3` on PATH."""
    folder = tarfile.TarInfo("tmp")
    folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
    archive.addfile(folder)
    users = b"root:x:0:0:root:/root:/bin/sh\n"
    entry = tarfile.TarInfo("etc/passwd")
    entry.size = len(users)
    archive.addfile(entry, BytesIO(users))
    link = tarfile.TarInfo("usr/local/bin/python3")
    link.type, link.linkname = tarfile.SYMTYPE, str(_PYTHON)
    archive.addfile(link)


def _closure(names: Iterable[str]) -> set[str]:
    """Return the installed distributions that distributions require, themselves included."""
    known, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name in known or name in _NOT_IMPORTED:
            continue
        if (required := _requirements(name)) is not None:
            known.add(name)
            waiting += required
    return known


def _requirements(name: str) -> list[str] | None:
    """Return the names of a distribution's requirements, without extras; None if it is not installed."""
    try:
        lines = metadata.distribution(name).requires or []
    except metadata.PackageNotFoundError:
        return None
    return [re.split(r"[^\w.-]", line)[0].lower() for line in lines if "extra ==" not in line]


def _files(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution below site-packages, with their places there, and compiled modules."""
    for file in distribution.files or []:
        place = Path(str(file.locate()))
        if not str(file).startswith("..") and place.is_file():
            yield str(file), place
            # A container loses the bytecode that its processes compile: torch takes 10 s of it at each start.
            compiled = Path(cache_from_source(place)) if place.suffix == ".py" else None
            if compiled is not None and compiled.is_file():
                yield str(Path(str(file)).parent / "__pycache__" / compiled.name), compiled


def _libraries(files: Iterable[Path]) -> set[str]:
    """Return the libraries of the system that programs and libraries need, and their loader."""
    binaries = [str(file) for file in files if ".so" in file.suffixes or file.parent.name == "bin"]
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return {
        path for path in re.findall(r"(?:=> |^\t)(/\S+) \(0x", listed, re.MULTILINE) if not path.startswith(sys.prefix)
    }
