"""Runs in a pinned image, by a real Podman: run, stop, resume, reproduce, and `kill -9` of each process around it."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.containers.launcher import ContainerLauncher, remove_left
from m5ws.environment import recorded
from m5ws.launch import reaper
from m5ws.launch.interface import Process
from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest
from m5ws.records.ledger import AttemptEnded, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, runs
from tests.support.machine import podman
from tests.support.machine.podman import Storage
from tests.support.waiting import wait_for
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


@pytest.fixture(scope="module")
def engine(podman_storage: Storage) -> Iterator[Storage]:
    """The storage. Podman's variables are set."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in podman_storage.variables.items():
            patch.setenv(name, value)
        yield podman_storage


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
    """Return step and attempt of the newest valid checkpoint of the only run; zeros without one."""
    if not list(workspace.root.glob(".m5ws/runs/*/*/spool/admitted")):
        return 0, 0
    for run in runs.facts(workspace.repo):
        for label in reversed(checkpoints.valid(workspace.repo, run)):
            return checkpoints.step_of(label), checkpoints.attempt_of(label)
    return 0, 0


def newest_step(workspace: Workspace, attempt: int) -> tuple[int, int]:
    """Return the last recorded step of an attempt of the only run, and the attempt."""
    (run,) = runs.facts(workspace.repo)
    events = ledger.events(workspace.repo, run, attempt, "0")
    return max(event.step for event in events if isinstance(event, Step)), attempt


def slow(workspace: Workspace) -> None:
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 1.0")
    workspace.edit("config.yaml", "steps: 10", "steps: 12")
    workspace.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 1")
    commit_all(workspace.root)


def begun(workspace: Workspace, attempt: int, *arguments: str) -> "subprocess.Popen[str]":
    """Start an attempt in the background, and wait for its first checkpoint."""
    process = workspace.start(*arguments)
    wait_for(lambda: process.poll() is not None or newest_checkpoint(workspace)[1] == attempt)
    assert process.poll() is None, process.communicate()[0]
    return process


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param((signal.SIGTERM,), id="once"),
        pytest.param((signal.SIGTERM, signal.SIGUSR2), id="twice", marks=pytest.mark.soak),
    ],
)
def test_a_run_in_an_image_stops_resumes_and_is_reproduced(
    engine: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: tuple[signal.Signals, ...]
) -> None:
    monkeypatch.setenv("M5WS_CONTAINER_IMAGE", _OTHER)
    workspace = pinned(tmp_path / "w", engine.image)
    slow(workspace)
    words: tuple[str, ...] = ("run", "--name", "first")
    for number, each in enumerate(signals, 1):
        process = begun(workspace, number, *words)
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
    engine: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["m5ws", "a rank"])
def test_a_run_is_resumed_after_a_kill_of_one_process(engine: Storage, tmp_path: Path, victim: str) -> None:
    workspace = pinned(tmp_path / "w", engine.image)
    slow(workspace)
    process = begun(workspace, 1, "run", "--name", "killed")
    lines = {pid: reaper.command_line(pid) for pid in reaper.descendants(process.pid)}
    ranks = [pid for pid, line in lines.items() if "m5ws.training.rank" in line and "torch.distributed" not in line]
    assert len(ranks) == 2
    os.kill(process.pid if victim == "m5ws" else ranks[0], signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not engine.containers())
    # Another process may have the id by now.
    wait_for(lambda: not any(line and reaper.command_line(pid) == line for pid, line in lines.items()))
    workspace.process("resume", "killed")
    run = workspace.json("show", "killed")["run"]["id"]
    ends = [ledger.ended(workspace.repo, run, attempt) for attempt in ledger.attempts(workspace.repo, run)]
    assert [end.outcome for end in ends if isinstance(end, AttemptEnded)] == ["failed", "finished"]
    workspace.process("fsck")
    assert engine.containers() == []


def launched(engine: Storage, folder: Path) -> Process:
    """Start a process in a container that ends with status 7 after SIGTERM, and wait until it runs."""
    script = "import signal, time; signal.signal(15, lambda *_: exit(7)); print('begun', flush=True); time.sleep(600)"
    request = LaunchRequest(
        argv=("python3", "-c", script),
        cwd=str(folder),
        environment={},
        log=str(folder / "logs" / "launcher.log"),
        processes=str(folder / "processes"),
        image=engine.image,
        folders=(str(folder),),
    )
    environment = dict(os.environ)
    launcher = ContainerLauncher(LocalLauncher(environment), environment, (), folder / "homes")
    process, log = launcher.launch(request), Path(request.log)
    wait_for(lambda: process.poll() is not None or "begun" in log.read_text())
    assert process.poll() is None, log.read_text()
    return process


def of_launch(process: Process) -> list[int]:
    """Return the reaper of a launch, and the command of its engine."""
    program = f"{shutil.which('podman')} run"
    below = reaper.descendants(process.pid)
    return [process.pid, *(pid for pid in below if reaper.command_line(pid).startswith(program))]


def test_a_stopped_container_ends_as_its_process(engine: Storage, tmp_path: Path) -> None:
    process = launched(engine, tmp_path)
    assert process.facts()["container.image"] == engine.image
    assert process.stop(60.0) == 7 and engine.containers() == []
    killed = launched(engine, tmp_path)
    assert killed.stop(0.0) != 0 and engine.containers() == []


@pytest.mark.parametrize("with_reaper", [pytest.param(False, marks=pytest.mark.soak), True])
def test_no_container_is_left_after_a_kill_of_the_engines_command(
    engine: Storage, tmp_path: Path, with_reaper: bool
) -> None:
    process = launched(engine, tmp_path)
    launch, command = of_launch(process)
    assert len(engine.containers()) == 1
    victims = [launch, command] if with_reaper else [command]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in victims:
            os.kill(pid, number)
    if with_reaper:
        # Nobody looks after the container now, as after a kill of m5ws with all processes of the launch.
        remove_left(tmp_path / "logs", os.environ)
    else:
        wait_for(lambda: process.poll() is not None)
    assert engine.containers() == [] and not (tmp_path / "logs" / "container").exists()


def test_an_image_that_cannot_train_is_refused(
    engine: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = podman.load(engine.variables, "localhost/m5ws/bare:1", podman.files_of())
    name = engine.image.partition("@")[0]
    refused = {
        bare: (2, "RUN pip install 'm5ws[train]=="),
        f"{name}@sha256:{'0' * 64}": (3, "podman pull"),
        f"{name}:1": (2, "has no digest"),
    }
    for number, (image, (status, message)) in enumerate(refused.items()):
        workspace = pinned(tmp_path / f"w{number}", image)
        error = workspace.process("run", expect=None)
        assert error.returncode == status and message in error.stderr, error.stderr
        assert workspace.json("ls")["runs"] == []
    assert engine.containers() == []
    (tmp_path / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    workspace = pinned(tmp_path / "w", engine.image)
    error = workspace.m5ws("run", expect=3)
    assert "no container engine answers" in error.stderr and "Install Podman" in error.stderr
    assert f"M5WS_CONTAINER_IMAGE={engine.image}" in error.stderr
