"""What only a process with torch can tell: its versions, vector capability, devices.

`python -m m5ws.training.observe` prints them as one JSON object. It costs seconds, so its answer is kept under
a digest of everything it depends on; an entry is used only if it is whole, and an unknown variable makes a new
one: a wrong fact is worse than a slow snapshot.
"""

import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path

import blake3

import m5ws
from m5ws.filesystem import write_atomically

Facts = dict[str, str | None]

_TIMEOUT_S = 300.0
_KEPT_ENTRIES = 64
# Variables of terminals, sessions, credentials, runs and m5ws itself: they differ between two calls, and torch reads
# none.
_IRRELEVANT = (
    "_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "TERM*",
    "COLUMNS",
    "LINES",
    "LS_COLORS",
    "COLORTERM",
    "DISPLAY",
    "WINDOWID",
    "SSH_*",
    "TMUX*",
    "STY",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_*",
    "XDG_STATE_HOME",
    "PS1",
    "AWS_*",
    "M5WS_*",
    "MLFLOW_*",
    "PYTEST_*",
)
_STAMPED = ("torch", "deepspeed", "numpy", "triton")
NAMES = (
    "torch",
    "torch.cuda",
    "torch.git",
    "cuda.driver",
    "cudnn",
    "nccl",
    "cpu.capability",
    "cpu.portable",
    "mkl",
    "onednn",
    "deepspeed",
)
"""Facts that only the process can tell; each is None where it cannot. It may tell more."""


class EffectiveFacts:
    """Asks a process of its own, or `cache`, a directory; None keeps nothing."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache

    def read(self, environment: Mapping[str, str], native: Facts, distributions: Mapping[str, str]) -> Facts:
        """Return the facts of a process with `environment`; all are None where torch is not installed.

        If the process fails, `torch.error` says how, and nothing is kept.
        """
        absent: Facts = dict.fromkeys(NAMES)
        if "torch" not in distributions:
            return absent
        key = _key(environment, native, distributions)
        if (known := self._known(key)) is not None:
            return known
        found = absent | _ask(environment)
        if found["cuda.driver"] is None and native.get("gpu.driver") is not None:
            found["cuda.driver"] = _driver_api(environment)
        if "torch.error" not in found:
            self._keep(key, found)
        return found

    def _known(self, key: str) -> Facts | None:
        if self._cache is None:
            return None
        try:
            digest, _, payload = (self._cache / key).read_bytes().partition(b"\n")
        except OSError:
            return None
        # A damaged entry is not used: the process is asked again and writes it anew.
        return _facts(payload) if blake3.blake3(payload).hexdigest().encode() == digest else None

    def _keep(self, key: str, found: Facts) -> None:
        """Keep an answer. What cannot be kept (no home, a full disk) is asked again, and no error."""
        if self._cache is not None:
            with suppress(OSError):
                _write(self._cache, key, found)


def _write(cache: Path, key: str, found: Facts) -> None:
    payload = json.dumps(found, sort_keys=True).encode()
    cache.mkdir(parents=True, exist_ok=True)
    write_atomically(cache / key, blake3.blake3(payload).hexdigest().encode() + b"\n" + payload)
    entries = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for stale in entries[_KEPT_ENTRIES:]:
        stale.unlink(missing_ok=True)


def _ask(environment: Mapping[str, str]) -> Facts:
    # -P: a torch.py in the current directory must not be taken for torch.
    command = [sys.executable, "-P", "-m", "m5ws.training.observe"]
    try:
        done = subprocess.run(
            command, env=_with_package(environment), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"torch.error": f"{command[-1]} gave no answer in {_TIMEOUT_S:.0f} s"}
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return {"torch.error": f"exit {done.returncode}: {lines[-1] if lines else 'no message'}"}
    found = next((facts for line in reversed(done.stdout.splitlines()) if (facts := _facts(line)) is not None), None)
    return found if found is not None else {"torch.error": f"{command[-1]} printed no facts"}


def _driver_api(environment: Mapping[str, str]) -> str | None:
    """Return the newest CUDA version that the driver serves, from the head of nvidia-smi's table."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath))
    if program is None:
        return None
    try:
        table = subprocess.run([program], env=dict(environment), capture_output=True, timeout=60.0, check=False).stdout
    except subprocess.TimeoutExpired:
        return None
    found = re.search(rb"CUDA Version:\s*(\d[\d.]*)", table)
    return found[1].decode() if found else None


def _facts(payload: bytes) -> Facts | None:
    """Return the JSON object in `payload`, or None if that is not what it is: libraries print to stdout too."""
    try:
        data = json.loads(payload)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    return {str(name): None if value is None else str(value) for name, value in data.items()}


def _with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with this m5ws importable, also where it runs from a checkout."""
    package = str(Path(m5ws.__file__).parent.parent)
    if package in site.getsitepackages():
        return dict(environment)
    inherited = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{inherited}{os.pathsep}{package}" if inherited else package}


def _key(environment: Mapping[str, str], native: Facts, distributions: Mapping[str, str]) -> str:
    """Return a digest of all that the answer is a function of. No value of a variable can be read out of it."""
    relevant = {
        name: value
        for name, value in environment.items()
        if not any(fnmatchcase(name, pattern) for pattern in _IRRELEVANT)
    }
    parts = [
        os.uname().nodename,  # homes are shared among machines
        sys.executable,
        sys.version,
        sorted(relevant.items()),
        sorted(native.items(), key=lambda item: item[0]),
        sorted(distributions.items()),
        list(_stamps(environment)),
    ]
    return blake3.blake3(json.dumps(parts).encode()).hexdigest()


def _stamps(environment: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of what can change under an equal version: libraries, their built ops, the asker."""
    for name in _STAMPED:
        try:
            folder = Path(str(metadata.distribution(name).locate_file(name)))
        except metadata.PackageNotFoundError:
            continue
        files = (folder / "version.py", folder / "__init__.py", *sorted(folder.glob("lib/*.so*")))
        yield from filter(None, map(_stamp, files))
    yield from filter(None, map(_stamp, sorted(Path(m5ws.__file__).parent.glob("training/**/*.py"))))
    yield from filter(None, map(_stamp, sorted(_extensions(environment).glob("**/*.so"))))


def _extensions(environment: Mapping[str, str]) -> Path:
    """Return where torch builds C++ extensions (torch.utils.cpp_extension, `_get_build_directory`)."""
    if chosen := environment.get("TORCH_EXTENSIONS_DIR"):
        return Path(chosen)
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".cache"
    return Path(caches) / "torch_extensions"


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_size, found.st_mtime_ns
