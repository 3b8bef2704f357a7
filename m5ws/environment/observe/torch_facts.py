"""Facts that need a process with torch: versions, vector capability, devices.

`python -m m5ws.training.torch_facts` prints them as one JSON object. It takes seconds, so the facts are cached under a
digest of all inputs. An entry is used only if its checksum matches, and an unknown variable makes a new entry: a wrong
fact is worse than a slow snapshot.
"""

import json
import os
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path

import blake3

from m5ws import version
from m5ws.filesystem import write_atomically

Facts = dict[str, str | None]

_TIMEOUT_S = 300.0
_KEPT_ENTRIES = 64
# Variables of terminals, sessions, credentials, runs and m5ws. They differ between two calls, and torch reads none of
# them.
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
"""Facts that only the process has; each is None if unknown. Its output may have more facts."""


class TorchFacts:
    """Facts from a separate process, cached in the directory `cache`; None: no cache."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache

    def read(self, environment: Mapping[str, str], native: Facts, distributions: Mapping[str, str]) -> Facts:
        """Return the facts of a process with `environment`; all are None if torch is not installed.

        If the process fails, `torch.error` has the error, and nothing is cached.
        """
        absent: Facts = dict.fromkeys(NAMES)
        if "torch" not in distributions:
            return absent
        key = _key(environment, native, distributions)
        if (cached := self._cached(key)) is not None:
            return cached
        facts = absent | _run(environment)
        if "torch.error" not in facts:
            self._store(key, facts)
        return facts

    def _cached(self, key: str) -> Facts | None:
        if self._cache is None:
            return None
        try:
            digest, _, payload = (self._cache / key).read_bytes().partition(b"\n")
        except OSError:
            return None
        # A damaged entry is ignored, and replaced after the next process.
        return _facts(payload) if blake3.blake3(payload).hexdigest().encode() == digest else None

    def _store(self, key: str, facts: Facts) -> None:
        """Cache facts. A failed write (no home, a full disk) is not an error: the next call starts a process."""
        if self._cache is not None:
            with suppress(OSError):
                _write(self._cache, key, facts)


def _write(cache: Path, key: str, facts: Facts) -> None:
    payload = json.dumps(facts, sort_keys=True).encode()
    cache.mkdir(parents=True, exist_ok=True)
    write_atomically(cache / key, blake3.blake3(payload).hexdigest().encode() + b"\n" + payload)
    entries = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for stale in entries[_KEPT_ENTRIES:]:
        stale.unlink(missing_ok=True)


def _run(environment: Mapping[str, str]) -> Facts:
    # -P: without it, a torch.py in the current directory would be imported.
    command = [sys.executable, "-P", "-m", "m5ws.training.torch_facts"]
    try:
        done = subprocess.run(
            command, env=_with_package(environment), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"torch.error": f"{command[-1]} did not end within {_TIMEOUT_S:.0f} s"}
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return {"torch.error": f"exit {done.returncode}: {lines[-1] if lines else 'no message'}"}
    printed = (facts for line in reversed(done.stdout.splitlines()) if (facts := _facts(line)) is not None)
    return next(printed, {"torch.error": f"{command[-1]} printed no facts"})


def _facts(payload: bytes) -> Facts | None:
    """Return the JSON object in `payload`, None for other output: libraries print to stdout too."""
    try:
        data = json.loads(payload)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    return {str(name): None if value is None else str(value) for name, value in data.items()}


def _with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with this m5ws on PYTHONPATH if it runs from a checkout."""
    package = str(Path(version.__file__).parent.parent)
    if package in site.getsitepackages():
        return dict(environment)
    inherited = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{inherited}{os.pathsep}{package}" if inherited else package}


def _key(environment: Mapping[str, str], native: Facts, distributions: Mapping[str, str]) -> str:
    """Return a digest of all inputs of the facts. It does not reveal the values of variables."""
    relevant = {
        name: value
        for name, value in environment.items()
        if not any(fnmatchcase(name, pattern) for pattern in _IRRELEVANT)
    }
    parts = [
        os.uname().nodename,  # machines can share a home directory
        sys.executable,
        sys.version,
        sorted(relevant.items()),
        sorted(native.items(), key=lambda item: item[0]),
        sorted(distributions.items()),
        list(_stamps(environment)),
    ]
    return blake3.blake3(json.dumps(parts).encode()).hexdigest()


def _stamps(environment: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of files that can change under an equal version: libraries, built operators, m5ws."""
    for name in _STAMPED:
        try:
            folder = Path(str(metadata.distribution(name).locate_file(name)))
        except metadata.PackageNotFoundError:
            continue
        files = (folder / "version.py", folder / "__init__.py", *sorted(folder.glob("lib/*.so*")))
        yield from filter(None, map(_stamp, files))
    yield from filter(None, map(_stamp, sorted(Path(version.__file__).parent.glob("training/**/*.py"))))
    yield from filter(None, map(_stamp, sorted(_extensions(environment).glob("**/*.so"))))


def _extensions(environment: Mapping[str, str]) -> Path:
    """Return the folder in which torch builds C++ extensions (torch.utils.cpp_extension, `_get_build_directory`)."""
    if chosen := environment.get("TORCH_EXTENSIONS_DIR"):
        return Path(chosen)
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".cache"
    return Path(caches) / "torch_extensions"


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path), status.st_size, status.st_mtime_ns
