"""Runs in a pinned image, by a real Podman: run, stop, resume, reproduce, and `kill -9` of each process around it."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from m5ws.environment import recorded
from m5ws.launch import reaper
from m5ws.records.ledger import AttemptEnded, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, runs
from tests.conftest import loud_skip
from tests.support.machine import podman
from tests.support.waiting import is_alive, wait_for
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.services

_OTHER = "registry.example.org/other@sha256:" + "0123456789abcdef" * 4
_PROBE = """
import json, os
from pathlib import Path

home = Path(os.environ["HOME"])
(home / "probe").write_text("kept")
shm = os.statvfs("/dev/shm")
print("PROBE", json.dumps({
    "variables": dict(os.environ), "user": os.getuid(), "shm": shm.f_blocks * shm.f_frsize,
    "seen": [path for path in os.environ["LOOK"].split(":") if os.path.exists(path)],
}))
"""


class Podman(msgspec.Struct, frozen=True):
    """Podman's own variables, which are set, and an image with torch and m5ws, by digest."""

    variables: dict[str, str]
    image: str

    def containers(self) -> list[str]:
        return podman.containers(self.variables)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if reason := podman.missing():
        loud_skip(reason)
    with podman.own(tmp_path_factory.mktemp("podman")) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        image = podman.load(
            variables, "localhost/m5ws/train:1", podman.files_of("torch", "numpy", "pyyaml", "tokenizers", "m5ws")
        )
        yield Podman(variables, image)


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def pinned(root: Path, image: str, script: str = "fsdp.py", nproc: int = 2) -> Workspace:
    """Make a workspace that pins an image."""
    workspace = make_workspace(root, script, nproc=nproc)
    with (root / "m5ws.toml").open("a") as settings:
        settings.write(f'\n[environment]\nimage = "{image}"\n')
    commit_all(root)
    return workspace


def facts(workspace: Workspace, run: str) -> dict[str, str | None]:
    return recorded.of_run(workspace.repo, run).facts


def newest_checkpoint(workspace: Workspace) -> tuple[int, int]:
    """Return step and attempt of the newest valid checkpoint of the only run."""
    (run,) = runs.facts(workspace.repo)
    label = checkpoints.valid(workspace.repo, run)[-1]
    return checkpoints.step_of(label), checkpoints.attempt_of(label)


def newest_step(workspace: Workspace, attempt: int) -> tuple[int, int]:
    """Return the last recorded step of an attempt of the only run, and the attempt."""
    (run,) = runs.facts(workspace.repo)
    events = ledger.events(workspace.repo, run, attempt, "0")
    return max(event.step for event in events if isinstance(event, Step)), attempt


def slow(workspace: Workspace) -> None:
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 1.0")
    workspace.edit("config.yaml", "steps: 10", "steps: 20")
    commit_all(workspace.root)


def begun(workspace: Workspace, name: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start an attempt in the background, and wait for its first step."""
    process = workspace.start(*arguments)
    wait_for(lambda: process.poll() is not None or steps(workspace, name))
    assert process.poll() is None, process.communicate()[0]
    return process


def steps(workspace: Workspace, attempt: str) -> bool:
    """Return True if a rank of the newest attempt with this number has written a step to its spool."""
    spools = (workspace.root / ".m5ws" / "runs").glob(f"*/{attempt}/spool/0.spool")
    return any(b"quantities" in spool.read_bytes() for spool in spools)


def test_a_run_in_an_image_stops_resumes_and_is_reproduced(
    engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M5WS_CONTAINER_IMAGE", _OTHER)
    workspace = pinned(tmp_path / "w", engine.image)
    slow(workspace)
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    words: tuple[str, ...] = ("run", "--name", "first")
    for number, each in enumerate(signals, 1):
        process = begun(workspace, f"{number:04d}", *words)
        assert len(engine.containers()) == 1
        process.send_signal(each)
        output = process.communicate()[0]
        assert process.returncode == 130, output
        assert newest_checkpoint(workspace) == newest_step(workspace, number), output
        assert engine.containers() == []
        words = ("resume", "first")
    workspace.process("resume", "first")
    run = workspace.json("show", "first")["run"]["id"]
    assert facts(workspace, run)["container.image"] == engine.image
    assert (facts(workspace, run)["container.image.source"] or "").startswith("podman ")
    assert "REPRODUCED" in workspace.process("reproduce", "first").stdout
    assert engine.containers() == []


def test_a_process_in_an_image_sees_its_own_folders_and_variables(
    engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "LD_LIBRARY_PATH": "/lib",
        "UNKNOWN": "1",
        "AWS_PROFILE": "x",
    }
    for name, value in outside.items() | {("NCCL_DEBUG", "WARN"), ("PYTHONPATH", "/nowhere")}:
        monkeypatch.setenv(name, value)
    workspace = pinned(tmp_path / "w", engine.image, nproc=1)
    (workspace.root / "train.py").write_text(_PROBE)
    (tmp_path / "beside").write_text("not mounted")
    hidden = [str(workspace.root / "train.py"), str(tmp_path / "beside"), "/etc/debian_version"]
    look = f'trainer = "python"\nenvironment = {{ LOOK = "{":".join((*hidden, "/tmp"))}", PATH = "/usr/local/bin" }}'
    workspace.edit("m5ws.toml", 'trainer = "torchrun"', look)
    commit_all(workspace.root)
    run = workspace.json("run")["run"]["id"]
    log = next((workspace.root / ".m5ws" / "runs" / run).rglob("rank-0.log")).read_text()
    probe = json.loads(log.partition("PROBE ")[2].splitlines()[0])
    assert probe["seen"] == ["/tmp"] and probe["user"] == os.geteuid()
    shm = os.statvfs("/dev/shm")
    assert probe["shm"] == shm.f_blocks * shm.f_frsize
    assert probe["variables"]["NCCL_DEBUG"] == "WARN" and probe["variables"]["PATH"] == "/usr/local/bin"
    assert not any(probe["variables"].get(name) == value for name, value in outside.items())
    assert [path.read_text() for path in tmp_path.glob("caches/m5ws-homes/*/probe")] == ["kept"]


@pytest.mark.parametrize("victim", ["m5ws", "the engine's command", "a rank", "all but the container"])
def test_nothing_is_left_after_a_kill(engine: Podman, tmp_path: Path, victim: str) -> None:
    workspace = pinned(tmp_path / "w", engine.image)
    slow(workspace)
    process = begun(workspace, "0001", "run", "--name", "killed")
    below = reaper.descendants(process.pid)
    lines = {pid: reaper.command_line(pid) for pid in below}
    command = [pid for pid, line in lines.items() if re.search(r"podman run ", line) and "reaper.py" not in line]
    outer = [pid for pid, line in lines.items() if "reaper.py" in line and "podman run " in line]
    ranks = [pid for pid, line in lines.items() if "m5ws.training.rank" in line and "torch.distributed" not in line]
    assert len(command) == len(outer) == 1 and len(ranks) == 2
    victims = {
        "m5ws": [process.pid],
        "the engine's command": command,
        "a rank": ranks[:1],
        "all but the container": [process.pid, *outer, *command],
    }[victim]
    if victim == "all but the container":
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    # The next command removes a container whose launch was killed with m5ws.
    wait_for(lambda: not workspace.process("ls").returncode and not engine.containers())
    assert not any(map(is_alive, below))
    workspace.process("resume", "killed")
    run = workspace.json("show", "killed")["run"]["id"]
    ends = [ledger.ended(workspace.repo, run, attempt) for attempt in ledger.attempts(workspace.repo, run)]
    assert [end.outcome for end in ends if isinstance(end, AttemptEnded)] == ["failed", "finished"]
    workspace.process("fsck")
    assert engine.containers() == []


def test_an_image_that_cannot_train_is_refused(engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = podman.load(engine.variables, "localhost/m5ws/bare:1", podman.files_of())
    name, digest = engine.image.split("@")
    refused = {
        bare: (1, "RUN pip install 'm5ws[train]=="),
        f"{name}@sha256:{'0' * 64}": (3, "podman pull"),
        f"{name}:1": (2, "has no digest"),
    }
    for number, (image, (status, message)) in enumerate(refused.items()):
        workspace = pinned(tmp_path / f"w{number}", image)
        error = workspace.process("run", expect=None)
        assert error.returncode == status and message in error.stderr, error.stderr
        assert workspace.json("ls")["runs"] == []
    (tmp_path / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    workspace = pinned(tmp_path / "w", engine.image)
    error = workspace.m5ws("run", expect=3)
    assert "no container engine answers" in error.stderr and "Install Podman" in error.stderr
    assert f"M5WS_CONTAINER_IMAGE={engine.image}" in error.stderr and digest in error.stderr
    assert engine.containers() == []
