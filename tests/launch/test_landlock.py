"""A limited process and its children use no file outside of their places, by any way and as any user."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from m5ws.launch import known_places, landlock
from tests.support.paths import ROOT

_PROBE = Path(__file__).parent / "scripts" / "probe_access.py"
_OWN = {"work directory", "moved to another folder", "system", "devices", "shared memory", "listener", "compiler"}
_FILES = ("file", "moved", "cut", "removed", "renamed")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all users may use, with `work` and with files in `outside`."""
    folder = Path(tempfile.mkdtemp(prefix="limits-"))
    outside = folder / "outside"
    for made in (outside, outside / "empty", folder / "work"):
        made.mkdir()
    for name in _FILES:
        (outside / name).write_text("true\n")
    Tokenizer(models.BPE()).save(str(outside / "tokenizer.json"))
    os.mkfifo(outside / "fifo")
    shutil.copy("/bin/true", outside / "program")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


_AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
_READS_ALL = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
"""The Python of these tests may be below the home directory of root."""


def _probe(place: Path, *, limited: bool, start: tuple[str, ...] = (), torch: bool = False) -> dict[str, str]:
    """Return the result of each use of files in a process that `start` starts."""
    work = place / "work"
    with open(place / "outside" / "file", "rb") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        argv = [sys.executable, str(_PROBE), str(place / "outside"), str(inherited.fileno()), *["torch"] * torch]
        if limited:
            read = (
                *known_places.python_folders(),
                str(ROOT),
                "/usr",
                "/bin",
                "/lib",
                "/lib64",
                "/etc",
                "/proc",
                "/sys",
            )
            argv = landlock.command(argv, read, (str(work), "/dev/shm", "/dev/null", "/dev/urandom"))
        done = subprocess.run(
            [*start, *argv],
            cwd=work,
            env={**os.environ, "TMPDIR": str(work), "HOME": str(work), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            text=True,
            close_fds=False,
            check=True,
        )
    return dict(json.loads(done.stdout))


def test_all_uses_work_without_limits(place: Path) -> None:
    """Otherwise a refusal would prove nothing."""
    assert set(_probe(place, limited=False).values()) == {"done"}


@pytest.mark.parametrize("user", ["the same", "nobody"])
def test_a_limited_process_uses_its_own_places_alone(place: Path, user: str) -> None:
    if user == "nobody" and os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    start = (*_AS_NOBODY, *_READS_ALL) if user == "nobody" else ()
    results = _probe(place, limited=True, start=start, torch=user == "the same")
    assert {name for name, result in results.items() if result == "done"} == _OWN | ({"own loader"} & results.keys())
    assert set(results.values()) == {"done", "refused"}, results
    assert sorted(path.name for path in (place / "outside").iterdir()) == sorted(
        [*_FILES, "empty", "tokenizer.json", "fifo", "program"]
    )


@given(st.integers(1, 20), st.integers(1, 20))
def test_a_newer_kernel_refuses_all_that_an_older_kernel_refuses(one: int, other: int) -> None:
    older, newer = (landlock.rights(version) for version in sorted((one, other)))
    assert older & newer == older
    assert landlock.rights(1) == 2**13 - 1 and landlock.rights(7) == 2**16 - 1


def test_a_missing_place_and_a_place_twice_are_no_errors(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "open('here', 'w')"]
    read = (*known_places.python_folders(), "/usr", "/lib", "/lib64", str(tmp_path / "missing"), str(tmp_path))
    done = subprocess.run(landlock.command(argv, read, (str(tmp_path), str(tmp_path))), cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "here").exists()


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    done = subprocess.run(landlock.command(["no-such-program"], (), ()), capture_output=True, text=True)
    assert done.returncode == 127
    assert "no-such-program could not be started" in done.stderr


_WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# Load the number of the system call; 444 returns ENOSYS, each other is allowed.
program = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050026), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code))), 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


def without_landlock(*argv: str) -> list[str]:
    """Return the command that becomes `argv` on a kernel whose Landlock is missing, by seccomp's filter."""
    return [sys.executable, "-c", _WITHOUT_LANDLOCK, *argv]


def test_a_limited_process_is_not_started_without_landlock(tmp_path: Path) -> None:
    argv = landlock.command(["touch", "made"], ("/",), (str(tmp_path),))
    done = subprocess.run(without_landlock(*argv), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 127 and not (tmp_path / "made").exists()
    assert "Function not implemented" in done.stderr
