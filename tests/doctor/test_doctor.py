"""Each check, with each thing broken by a real cause, and checks that hang."""

import importlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from m5ws.doctor import machine, servers, versions
from m5ws.doctor.doctor import Probe, examine
from m5ws.records.check import Check
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from tests.support.s3.scripted_s3 import ScriptedS3
from tests.support.workspace.checkouts import commit_all, write

LIMIT_S = 60.0


def check(name: str, probe: Probe, limit_s: float = LIMIT_S) -> Check:
    (result,) = examine({name: probe}, limit_s)
    assert result.passed == (not result.remedy)
    return result


# --- versions ------------------------------------------------------------------------------------------------------


def install(site: Path, name: str, version: str, head: str = "") -> None:
    write(site / f"{name}-{version}.dist-info", {"METADATA": f"Name: {name}\nVersion: {version}\n{head}"})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site folder that comes first, so that its distributions hide installed distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return folder


EXTRA = "Requires-Dist: sample-lib<2.14,>=2.13; extra == 'train'\n"


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("2.13.0", "ok"),
        ("2.13.0+cpu", "ok"),
        ("2.13.1+cu130", "ok"),
        ("2.13.0a0+50eac811a6.nv25.9", "broken"),
        ("2.12.9", "broken"),
        ("2.14.0", "broken"),
        ("2.14.0a0+50eac811a6.nv25.9", "broken"),
    ],
)
def test_a_version_is_compared_with_the_range_in_the_metadata(site: Path, version: str, state: str) -> None:
    install(site, "m5ws", "0.1.0", EXTRA)
    install(site, "sample_lib", version)
    result = check("train", versions.check_libraries)
    assert (result.state, result.detail) == (state, f"sample-lib {version} (<2.14,>=2.13)")
    assert state == "ok" or "pip install --upgrade 'm5ws[train]'" in result.remedy


def test_a_missing_library_counts_if_m5ws_itself_needs_it(site: Path) -> None:
    install(site, "m5ws", "0.1.0", EXTRA + "Requires-Dist: absent-core>=1\n")
    assert check("train", versions.check_libraries).state == "not needed"
    core = check("m5ws", versions.check_libraries)
    assert (core.state, core.detail) == ("missing", "absent-core is not installed")


def test_a_python_outside_the_range_is_broken(site: Path) -> None:
    assert check("python", versions.check_python).state == "ok"
    install(site, "m5ws", "0.1.0", "Requires-Python: >=3.99\n")
    assert check("python", versions.check_python).state == "broken"


def test_the_installed_libraries_are_in_the_ranges() -> None:
    for extra in (versions.PACKAGE, *versions.EXTRAS):
        assert check(extra, versions.check_libraries).state == "ok"


# --- programs and devices ------------------------------------------------------------------------------------------


def test_git_must_be_on_path_and_accept_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "place", {"a": "b"})
    commit_all(tmp_path / "place")
    probe = partial(machine.check_git, root=tmp_path / "place")
    assert check("git", probe).detail.startswith("git version 2")
    (tmp_path / "place/.git/config").write_text("[core\n")
    broken = check("git", probe)
    assert broken.state == "broken" and "config" in broken.detail
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check("git", probe).state == "missing"


def program(folder: Path, name: str, script: str) -> None:
    write(folder, {name: f"#!/bin/sh\n{script}\n"})
    (folder / name).chmod(0o755)


def test_only_container_engines_that_answer_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check("containers", machine.check_containers).detail == "no engine on PATH"
    program(tmp_path, "docker", "echo 28.2; echo cannot connect >&2; exit 1")
    assert check("containers", machine.check_containers) == Check("containers", "not needed", "docker does not answer")
    program(tmp_path, "podman", "echo 5.4.0")
    assert check("containers", machine.check_containers).detail == "podman 5.4.0, docker does not answer"


def test_kernel_features_are_never_broken() -> None:
    for probe in (machine.check_landlock, machine.check_namespaces, machine.check_io_limits):
        assert check("kernel", probe).state in ("ok", "not needed")


def test_limits_of_the_own_control_group_are_listed(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/job/io.max"
    write(tmp_path, {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cgroup.controllers": "cpu io memory\n"})
    probe = partial(machine.check_io_limits, system=tmp_path)
    assert check("io limits", probe).detail == "io.max: no limit"
    write(tmp_path, {group: "8:16 rbps=2097152 wbps=max\n"})
    assert check("io limits", probe).detail == "io.max: 8:16 rbps=2097152 wbps=max"


def test_a_gpu_without_a_driver_is_broken(tmp_path: Path) -> None:
    probe = partial(machine.check_gpus, system=tmp_path)
    assert check("gpus", probe).state == "not needed"
    write(tmp_path / "sys/bus/pci/devices/0000:00:04.0", {"vendor": "0x10de\n", "class": "0x030200\n"})
    assert check("gpus", probe).state == "broken"
    write(tmp_path, {"proc/driver/nvidia/gpus/0000:00:04.0/information": "Model: \t NVIDIA H100\n"})
    write(tmp_path, {"sys/module/nvidia/version": "580.95\n"})
    assert check("gpus", probe).detail == "1 × NVIDIA H100, driver 580.95"


def test_an_efa_device_without_its_libraries_is_broken(tmp_path: Path) -> None:
    probe = partial(machine.check_efa, environment={}, system=tmp_path)
    write(tmp_path / "sys/bus/pci/devices/0000:00:05.0", {"vendor": "0x1d0f\n", "device": "0xec20\n"})
    assert check("efa", probe).state == "not needed"
    write(tmp_path / "sys/bus/pci/devices/0000:00:06.0", {"vendor": "0x1d0f\n", "device": "0xefa2\n"})
    write(tmp_path, {"sys/module/efa/version": "2.13.0\n"})
    broken = check("efa", probe)
    assert broken.detail == "efa.driver 2.13.0, libfabric is missing, aws-ofi-nccl is missing"
    assert broken.state == "broken"
    lib = tmp_path / "opt/amazon/efa/lib64"
    write(lib, {"libfabric.so.1": "", "pkgconfig/libfabric.pc": "Version: 2.1\n"})
    write(lib, {"libnccl-net.so": "aws-ofi-nccl 1.16.0"})
    assert check("efa", probe).state == "ok"


# --- servers -------------------------------------------------------------------------------------------------------


def store_probe(url: str, folder: Path | None = None) -> Probe:
    return partial(servers.check_store, store=open_store(url), folder=folder)


@pytest.fixture
def server(s3_environment: None) -> Iterator[ScriptedS3]:
    with ScriptedS3() as running:
        yield running


def test_a_store_in_s3_needs_write_permission_and_one_winner(server: ScriptedS3) -> None:
    assert check("store", store_probe(server.url())).state == "ok"
    assert not server.objects
    server.always = lambda method, _key: "AccessDenied" if method == "PUT" else None
    refused = check("store", store_probe(server.url()))
    assert refused.state == "broken" and "s3:PutObject" in refused.detail
    server.always = lambda _method, _key: None
    server.conditional = False
    assert "If-None-Match" in check("store", store_probe(server.url())).remedy


def test_a_missing_folder_of_a_store_is_created_by_a_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "store"
    result = check("store", store_probe(str(folder), folder))
    assert result.state == "ok" and "first snapshot" in result.detail and not folder.parent.exists()


def test_a_file_in_the_place_of_a_folder_of_the_store_is_broken(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    Repository.create(open_store(str(folder)))
    assert check("store", store_probe(str(folder), folder)).state == "ok"
    (folder / "probe").rmdir()
    (folder / "probe").write_text("a file")
    broken = check("store", store_probe(str(folder), folder))
    assert broken.state == "broken" and str(folder) in broken.detail


def test_the_embedded_tracking_store_must_be_a_database_of_mlflow(tmp_path: Path) -> None:
    from m5ws.tracking.mlflow.tracker import Mlflow

    file = tmp_path / "mlflow.db"
    uri = f"sqlite:///{file}"
    probe = partial(servers.check_tracking, tracker=Mlflow(uri, "e", "store", tmp_path), tracking_uri=uri)
    assert check("tracking", probe).state == "ok" and not file.exists()
    file.write_text("no database, but text of more than a hundred bytes. " * 3)
    assert check("tracking", probe).state == "broken"
    assert check("tracking", partial(servers.check_tracking, tracker=None, tracking_uri=uri)).state == "not needed"


# --- checks that hang ------------------------------------------------------------------------------------------------


def test_a_check_that_hangs_is_broken_and_the_others_have_results() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def hang(name: str) -> Check:
            with socket.create_connection(silent.getsockname()) as connection:
                return Check(name, "ok", connection.recv(1).decode())

        hanging, other = examine({"hanging": hang, "landlock": machine.check_landlock}, 0.5)
    assert hanging == Check("hanging", "broken", "no answer in 0.5 s", hanging.remedy) and hanging.remedy
    assert other.passed


def test_an_error_of_the_system_is_broken_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    result = check("namespaces", machine.check_namespaces)
    assert result.state == "broken" and "absent" in result.detail


def test_an_unexpected_error_of_a_check_is_not_hidden() -> None:
    def fail(name: str) -> Check:
        raise LookupError(name)

    with pytest.raises(LookupError, match="odd"):
        examine({"odd": fail}, LIMIT_S)


def test_doctor_ends_while_a_server_is_silent(tmp_path: Path, s3_environment: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = f"url = 's3://bucket/store'\nendpoint_url = 'http://127.0.0.1:{silent.getsockname()[1]}'\n"
        write(tmp_path, {"m5ws.toml": f"[mlflow]\nenabled = false\n[store]\n{store}"})
        command = [sys.executable, "-m", "m5ws", "-C", str(tmp_path), "doctor", "--timeout", "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1 and "no answer in 2 s" in done.stdout and not done.stderr, done


def test_doctor_loads_no_heavy_library(tmp_path: Path) -> None:
    write(tmp_path, {"m5ws.toml": ""})
    code = (
        f"import sys; from m5ws.cli import main; main(['-C', {str(tmp_path)!r}, 'doctor', '--json']);"
        "print([name for name in ('torch', 'numpy', 'mlflow', 'dvc', 'boto3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
