"""Command lines for container engines, and errors before and in a container. No engine is started here."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from m5ws.environment.rebuild.containers import Container, Containers, NoEngine
from m5ws.launch.interface import Launcher, Process
from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest, Observing
from m5ws.records.recipe import Recipe
from tests.support.workspace.checkouts import write

_IMAGE = "registry.example.org/train@sha256:" + "0123456789abcdef" * 4


def _container(engine: str, *, gpus: bool = False) -> Container:
    return Container(
        engine=engine, program=f"/bin/{engine}", image=_IMAGE, mounts={"/w": True, "/own": False}, gpus=gpus
    )


@pytest.mark.parametrize("user", [0, 1000])
def test_docker_and_podman_get_folders_variables_and_the_command(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    as_it_is = f"--user {os.getuid()}:{os.getgid()}"
    for engine, own in (("docker", as_it_is), ("podman", "--userns keep-id" if user else as_it_is)):
        words = " ".join(_container(engine).argv(("python3", "-m", "x"), "/w/1", ["A", "B"]))
        assert words == (
            f"/bin/{engine} run --rm --network host --ipc host {own} --volume /w:/w --volume /own:/own:ro "
            f"--workdir /w/1 --env A --env B --entrypoint python3 {_IMAGE} -m x"
        )
    assert "--gpus all" in " ".join(_container("docker", gpus=True).argv(("x",), "/", []))
    assert "--device nvidia.com/gpu=all" in " ".join(_container("podman", gpus=True).argv(("x",), "/", []))


def test_apptainer_takes_the_image_from_its_registry() -> None:
    words = " ".join(_container("apptainer", gpus=True).argv(("python3", "-m", "x"), "/w/1", ["A"]))
    assert words == (
        f"/bin/apptainer exec --bind /w:/w:rw --bind /own:/own:ro --pwd /w/1 --nv docker://{_IMAGE} python3 -m x"
    )


class _RecordingLauncher:
    """A launcher that keeps its requests."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.requests: list[LaunchRequest] = []

    def can_mount(self, folder: str, path: str) -> bool:
        return False

    def launch(self, request: LaunchRequest) -> Process:
        self.requests.append(request)
        return LocalLauncher({}).launch(msgspec.structs.replace(request, argv=(sys.executable, "-c", ""), prepare=()))


def _containers(
    folder: Path, environment: Mapping[str, str], launcher: Callable[..., Launcher] = LocalLauncher
) -> Containers:
    return Containers(folder / "kept", (folder,), environment, launcher, Observing(root=str(folder)))


def test_a_launch_gets_the_variables_of_the_host_without_those_about_the_host(tmp_path: Path) -> None:
    write(tmp_path, {"bin/docker": "#!/bin/sh\n"})
    (tmp_path / "bin" / "docker").chmod(0o755)
    host = {"PATH": str(tmp_path / "bin"), "HOME": "/home/ada", "MY_SECRET": "not-to-be-seen", "LD_LIBRARY_PATH": "/h"}
    recorder = _RecordingLauncher({})
    made = _containers(tmp_path, host, lambda _: recorder).build(Recipe(python="3.11.7", image=_IMAGE), lambda _: None)
    added = {"OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": "/request_made/for"}
    request = LaunchRequest(
        argv=("python3", "-m", "a"),
        prepare=("python3", "-m", "b"),
        cwd=str(tmp_path),
        environment=added,
        log=str(tmp_path / "log"),
    )
    made.launcher.launch(request).stop(5.0)
    (request_made,) = recorder.requests
    assert request_made.argv[-2:] == ("-m", "a") and request_made.prepare[-2:] == ("-m", "b")
    assert (
        request_made.environment["MY_SECRET"] == "not-to-be-seen"
        and request_made.environment["LD_LIBRARY_PATH"] == "/request_made/for"
    )
    assert (
        request_made.environment["M5WS_CONTAINER_IMAGE"] == _IMAGE
        and not {"HOME", "PATH"} & request_made.environment.keys()
    )
    assert "not-to-be-seen" not in " ".join(request_made.argv)


def test_what_a_launch_unsets_stays_outside_and_its_own_folders_come_after_m5ws(tmp_path: Path) -> None:
    write(tmp_path, {"bin/docker": "#!/bin/sh\n"})
    (tmp_path / "bin" / "docker").chmod(0o755)
    recorder = _RecordingLauncher({})
    host = {"PATH": str(tmp_path / "bin"), "OMP_DYNAMIC": "TRUE"}
    made = _containers(tmp_path, host, lambda _: recorder).build(Recipe(python="3.11.7", image=_IMAGE), lambda _: None)
    request = LaunchRequest(
        argv=("python3",),
        cwd=str(tmp_path),
        environment={"PYTHONPATH": f"src{os.pathsep}/of/the/host"},
        log=str(tmp_path / "log"),
        unset=("OMP_DYNAMIC",),
    )
    made.launcher.launch(request).stop(5.0)
    (request_made,) = recorder.requests
    assert "OMP_DYNAMIC" not in request_made.environment and "OMP_DYNAMIC" not in request_made.argv
    own, *rest = request_made.environment["PYTHONPATH"].split(os.pathsep)
    assert Path(own, "m5ws").is_dir() and rest == ["src"]


@pytest.mark.parametrize("engine", ["podman", "docker", "apptainer"])
def test_a_folder_is_seen_at_the_path_that_a_launch_names(engine: str) -> None:
    words = " ".join(_container(engine).argv(("python3",), "/seen", [], ("/w/work", "/seen")))
    assert "/w/work:/seen" in words and "/w/work:/seen:ro" not in words


def test_a_mount_is_the_engines_and_not_the_launchers_that_starts_it(tmp_path: Path) -> None:
    write(tmp_path, {"bin/docker": "#!/bin/sh\n"})
    (tmp_path / "bin" / "docker").chmod(0o755)
    recorder = _RecordingLauncher({})
    host = {"PATH": str(tmp_path / "bin")}
    made = _containers(tmp_path, host, lambda _: recorder).build(Recipe(python="3.11.7", image=_IMAGE), lambda _: None)
    assert made.launcher.can_mount("/w/work", "/seen")
    request = LaunchRequest(
        argv=("python3",), cwd=str(tmp_path), environment={}, log=str(tmp_path / "log"), mount=("/w/work", "/seen")
    )
    made.launcher.launch(request).stop(5.0)
    (request_made,) = recorder.requests
    assert request_made.mount is None and "/w/work:/seen" in request_made.argv


def test_without_an_engine_one_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoEngine, match="podman") as raised:
        _containers(tmp_path, {"PATH": str(tmp_path)}).build(Recipe(python="3.11.7", image=_IMAGE), lambda _: None)
    assert f"M5WS_CONTAINER_IMAGE={_IMAGE}" in raised.value.hint
