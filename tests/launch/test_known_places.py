"""Places that a run uses without a pin: its Python, the system, m5ws's own folders and compile caches."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import m5ws
from m5ws.launch import known_places
from m5ws.launch.known_places import Places
from tests.support.ranks.orders import orders


def _has(folders: tuple[str, ...], path: str) -> bool:
    real = os.path.realpath(path)
    return any(real == folder or real.startswith(f"{folder}/") for folder in folders)


def _find(tmp_path: Path, **environment: str) -> Places:
    context = orders(tmp_path / "run", store=str(tmp_path / "store"), copies=str(tmp_path / "copies"))
    return known_places.find(context, {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), **environment})


def test_every_loaded_module_of_an_interpreter_is_in_a_known_place(tmp_path: Path) -> None:
    program = "import json, sys, asyncio, sqlite3, click, msgspec; print(json.dumps([m.__file__ for m in list("
    program += "sys.modules.values()) if getattr(m, '__file__', None)]))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    places = _find(tmp_path)
    # Debian's Python loads a file in /etc.
    assert [file for file in json.loads(printed) if not _has((*places.python, "/etc"), file)] == []
    assert _has(places.system, "/etc")
    assert _has(places.python, m5ws.__file__)
    assert _has(places.python, sysconfig.get_path("purelib"))


@pytest.mark.parametrize("path", ["/usr/lib", "/lib/x86_64-linux-gnu", "/etc/localtime", "/proc/self", "/sys/class"])
def test_the_system_is_a_known_place(tmp_path: Path, path: str) -> None:
    assert _has(_find(tmp_path).system, path)


def test_devices_are_known_and_shared_memory_is_not(tmp_path: Path) -> None:
    devices = _find(tmp_path).devices
    assert _has(devices, "/dev/null")
    assert not _has(devices, "/dev/shm/dataset")


def test_folders_of_the_attempt_are_its_own_and_the_checkout_is_not(tmp_path: Path) -> None:
    own = _find(tmp_path).own
    for name in ("run/work/data", "run/spool/0.spool", "run/out", "store/objects", "copies", "run/author/.m5ws/x"):
        assert _has(own, str(tmp_path / name)), name
    assert not _has(own, str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"])
def test_a_compile_cache_is_known_at_its_default_and_where_its_variable_leads(tmp_path: Path, name: str) -> None:
    places = _find(tmp_path, **{name: str(tmp_path / "elsewhere")})
    assert _has(places.caches, str(tmp_path / "elsewhere/kernel.so"))
    assert _has(places.caches, str(tmp_path / "home/.triton/cache/x"))
    assert not _has(places.caches, str(tmp_path / "home/.cache/huggingface/model"))


def test_no_place_is_empty_relative_or_the_whole_machine(tmp_path: Path) -> None:
    places = _find(tmp_path, TRITON_CACHE_DIR="relative", NUMBA_CACHE_DIR="/")
    every = (*places.fixed, *places.own, *places.caches)
    assert all(os.path.isabs(place) and place != "/" for place in every)


@pytest.mark.parametrize(
    ("store", "host"),
    [
        ("s3://bucket/p?region=eu-west-1", "bucket.s3.eu-west-1.amazonaws.com"),
        ("s3://bucket/p?endpoint_url=http://minio:9000", "minio"),
        ("s3://bucket/p", "169.254.169.254"),
        ("/somewhere", "node-1"),
        ("/somewhere", "mlflow.example"),
    ],
)
def test_hosts_of_the_run_are_known_and_the_bucket_of_another_store_is_not(
    tmp_path: Path, store: str, host: str
) -> None:
    environment = {"MASTER_ADDR": "node-1", "MLFLOW_TRACKING_URI": "https://mlflow.example/x"}
    hosts = known_places.hosts(orders(tmp_path, store=store), environment)
    assert host in hosts
    assert "localhost" in hosts
    assert hosts.isdisjoint({"other.s3.eu-west-1.amazonaws.com", "huggingface.co"})


def test_packages_that_a_pth_file_adds_belong_to_the_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, "/other/lib/python3.11/site-packages", "/other/code"])
    folders = {*known_places.python_folders()}
    assert "/other/lib/python3.11/site-packages" in folders and "/other/code" not in folders
