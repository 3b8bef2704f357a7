"""Command lines of engines. tests/services/test_images.py starts containers with them."""

import itertools
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.containers import command
from m5ws.containers.command import Container
from m5ws.containers.engines import DOCKER, PODMAN, Engine, EngineError

_IMAGE = "registry.example.org/train@sha256:" + "0123456789abcdef" * 4
_NAMES = st.from_regex(r"[A-Z_]{1,4}", fullmatch=True)
_VARIABLES = st.dictionaries(_NAMES, st.text(max_size=3))


def engine(name: str) -> Engine:
    return Engine(name, f"/usr/bin/{name}", "1.0", {})


def options(words: list[str], name: str) -> list[str]:
    """Return the values of an option before the image."""
    before = words[: words.index(_IMAGE)]
    return [value for option, value in itertools.pairwise(before) if option == name]


CONTAINER = Container(
    image=_IMAGE, name="m5ws-1", cwd="/work/0/work", folders=("/store", "/home/me/runs/1"), mount=("/work/7", "/work/0")
)


@pytest.mark.parametrize("name", [PODMAN, DOCKER])
@given(environment=_VARIABLES, host=_VARIABLES)
def test_the_command_has_only_values_that_its_own_process_lacks(
    name: str, environment: dict[str, str], host: dict[str, str]
) -> None:
    words = command.argv(engine(name), CONTAINER, environment, host, ["train"])
    rendered = options(words, "--env")
    assert rendered == [
        f"{each}={value}" if host.get(each, value) != value else each for each, value in environment.items()
    ]
    # The process of the command has the variables of the host, and the variables that the host lacks.
    process = {each: value for each, value in environment.items() if each not in host} | host
    received = {each.partition("=")[0]: each.partition("=")[2] if "=" in each else process[each] for each in rendered}
    assert received == environment


def test_a_container_sees_the_folders_of_its_request_alone() -> None:
    words = command.argv(engine(PODMAN), CONTAINER, {}, {}, ["torchrun", "train.py"], "/spool/processes")
    assert options(words, "--mount") == [
        "type=bind,source=/store,target=/store",
        "type=bind,source=/home/me/runs/1,target=/home/me/runs/1",
        "type=bind,source=/work/7,target=/work/0",
    ]
    assert options(words, "--volume") == []
    assert words[-6:] == ["/spool/processes", "0", "", "", "torchrun", "train.py"]


@pytest.mark.parametrize("name", [PODMAN, DOCKER])
@pytest.mark.parametrize("user", [0, 1000])
def test_files_belong_to_the_user_of_m5ws(monkeypatch: pytest.MonkeyPatch, name: str, user: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getegid", lambda: user)
    words = command.argv(engine(name), CONTAINER, {}, {}, ["train"])
    is_mapped = name == PODMAN and user != 0
    assert options(words, "--userns") == (["keep-id"] if is_mapped else [])
    assert options(words, "--user") == ([] if is_mapped else [f"{user}:{user}"])


def machine(root: Path, *, gpu: bool, cdi: str, network: bool) -> Path:
    """Make the /dev, /etc and /proc of a machine."""
    for path, exists in {
        "proc/driver/nvidia/gpus/0000:01:00.0": gpu,
        f"{cdi}/nvidia.yaml": bool(cdi),
        "dev/infiniband/uverbs1": network,
        "dev/infiniband/uverbs0": network,
    }.items():
        if exists:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("kind: nvidia.com/gpu\n")
    return root


@pytest.mark.parametrize("name", [PODMAN, DOCKER])
@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("cdi", ["etc/cdi", "var/run/cdi", ""])
@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 8192])
def test_devices_are_passed_on_if_the_machine_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, gpu: bool, cdi: str, network: bool, limit: int
) -> None:
    root = machine(tmp_path, gpu=gpu, cdi=cdi, network=network)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    devices: Callable[[], list[str]] = lambda: command._devices(engine(name), root)  # noqa: E731
    if gpu and name == PODMAN and not cdi:
        with pytest.raises(EngineError, match="podman cannot pass on the GPUs") as refused:
            devices()
        assert "nvidia-ctk cdi generate" in refused.value.hint
        return
    by_engine = {PODMAN: ["--device", "nvidia.com/gpu=all"], DOCKER: ["--gpus", "all"]}
    expected = by_engine[name] if gpu else []
    if network:
        expected = [*expected, "--device", "/dev/infiniband/uverbs0", "--device", "/dev/infiniband/uverbs1"]
        expected += ["--ulimit", "memlock=-1:-1"] if name == DOCKER or limit == resource.RLIM_INFINITY else []
    assert devices() == expected
