"""Places that the processes of a run use without a pin: their Python, the system, m5ws's own folders, compile caches.

A file elsewhere is an input that no snapshot contains. The record of reads lists it, and `inputs = "pinned"` refuses
it. Both use this list. A place is a folder with all below it, or a file.
"""

import getpass
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from m5ws.launch import network
from m5ws.records.launch import Context

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/sys"),
    *("/nix/store", "/gnu/store", "/var/cache/fontconfig", "/var/cache/ldconfig", "/var/lib/dpkg", "/var/lib/rpm"),
    # /etc/resolv.conf is often a link into these folders.
    *("/run/systemd", "/run/resolvconf", "/run/NetworkManager", "/run/nscd"),
    *("/opt/amazon", "/opt/aws-ofi-nccl", "/opt/nvidia", "/opt/rocm"),
)
_CACHES = {
    "TORCH_EXTENSIONS_DIR": "{cache}/torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "{temporary}/torchinductor_{user}",
    "PYTORCH_KERNEL_CACHE_PATH": "{cache}/torch/kernels",
    "TRITON_HOME": "{home}/.triton",
    "TRITON_CACHE_DIR": "{home}/.triton/cache",
    "CUDA_CACHE_PATH": "{home}/.nv",
    "NUMBA_CACHE_DIR": "{cache}/numba",
    "MPLCONFIGDIR": "{cache}/matplotlib",
    "PYTHONPYCACHEPREFIX": "",
}
"""Variables with the folders in which libraries keep compiled code, and their defaults. Matplotlib keeps its list of
fonts.
"""
_CREDENTIALS = {
    "AWS_CONFIG_FILE": "{home}/.aws",
    "AWS_SHARED_CREDENTIALS_FILE": "{home}/.aws",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "",
    "NETRC": "{home}/.netrc",
}


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute paths of places, with links resolved, by their purpose. Some of them may not exist.

    `own`: the folder around the work directory, the spools, a store in a directory, and m5ws's caches. `devices` has
    no shared memory.
    """

    python: tuple[str, ...]
    system: tuple[str, ...]
    devices: tuple[str, ...]
    own: tuple[str, ...]
    caches: tuple[str, ...]
    credentials: tuple[str, ...]

    @property
    def fixed(self) -> tuple[str, ...]:
        """Places that no run writes to."""
        return (*self.python, *self.system, *self.devices, *self.credentials)


def find(context: Context, environment: Mapping[str, str], python: Iterable[str] | None = None) -> Places:
    """Return the places of an attempt's processes, which have `environment`.

    `python`: the folders of the ranks' Python; if None, of the Python that runs this.
    """
    return Places(
        python=_real(python_folders() if python is None else python),
        system=_real(_SYSTEM),
        devices=_real(_devices()),
        own=_real(_own(context, environment)),
        caches=_real(_located(_CACHES, environment)),
        credentials=_real(_located(_CREDENTIALS, environment)),
    )


def python_folders() -> Iterator[str]:
    """Yield the folders of this Python: its environment, the base installation, its packages, and the package m5ws."""
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    yield from sysconfig.get_paths().values()
    # A .pth file may add the packages of another environment.
    yield from (folder for folder in sys.path if os.path.basename(folder) in ("site-packages", "dist-packages"))
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()
    yield str(Path(__file__).parents[1])


def hosts(context: Context, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the hosts of the run itself: this machine, the first rank's, the store's and MLflow's.

    For a store in S3 without an endpoint, they are Amazon's names of the bucket
    (https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html), and the sources of credentials.
    """
    own = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "", os.uname().nodename}  # noqa: S104  compared alone
    own |= set(network.own_addresses())
    own |= {environment.get("MASTER_ADDR", ""), urlsplit(environment.get("MLFLOW_TRACKING_URI", "")).hostname or ""}
    return frozenset(own | set(_hosts_of_store(context.store, environment)))


def _hosts_of_store(url: str, environment: Mapping[str, str]) -> Iterator[str]:
    store = urlsplit(url)
    if store.scheme != "s3":
        return
    options = {name: values[0] for name, values in parse_qs(store.query).items()}
    endpoint = (
        options.get("endpoint_url") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    )
    if endpoint:
        yield urlsplit(endpoint).hostname or ""
    regions = {options.get("region"), environment.get("AWS_REGION"), environment.get("AWS_DEFAULT_REGION")}
    for suffix in ("", *(f".{region}" for region in regions if region)):
        yield from (f"{name}{suffix}.amazonaws.com" for name in (f"{store.netloc}.s3", "s3", "sts"))
    yield from ("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23")


def _devices() -> Iterator[str]:
    try:
        # Shared memory contains files and no devices.
        yield from (os.path.join("/dev", name) for name in os.listdir("/dev") if name != "shm")
    except OSError:
        return


def _own(context: Context, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders of m5ws that ranks use. The folder around the work directory is the attempt's alone."""
    yield os.path.dirname(context.work_dir)
    yield from (context.spool_dir, context.log_dir, context.output_dir, context.copies, context.references)
    yield from (context.files, context.local, *context.remotes)
    yield os.path.join(context.author_dir, ".m5ws")
    yield os.path.join(_folders(environment)["cache"], "m5ws")
    store = context.store.removeprefix("file://")
    if "://" not in store:
        yield store


def _located(variables: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables, and their defaults: a process may set or unset a variable."""
    folders = _folders(environment)
    for name, default in variables.items():
        yield environment.get(name, "")
        yield default.format_map(folders)


def _folders(environment: Mapping[str, str]) -> dict[str, str]:
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    temporary = environment.get("TMPDIR") or tempfile.gettempdir()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user often has a number alone.
        user = str(os.getuid())
    return {"home": home, "cache": cache, "temporary": temporary, "user": user}


def _real(paths: Iterable[str]) -> tuple[str, ...]:
    """Return absolute paths with their links resolved, each once. An empty path and the root are no places."""
    real = dict.fromkeys(os.path.realpath(path) for path in paths if os.path.isabs(path))
    return tuple(path for path in real if path != os.sep)
