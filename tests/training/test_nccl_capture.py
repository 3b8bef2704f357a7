"""A rank has NCCL write its log into the folder of spools, unless the user directs the log elsewhere."""

from pathlib import Path

import pytest

from m5ws.training.runtime import nccl


def test_the_log_is_a_file_of_the_rank_and_process(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    assert nccl.capture(tmp_path / "spool", 3, environment, tmp_path) == {}
    assert environment == {
        "HOME": str(tmp_path),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{tmp_path}/spool/3.%p.nccl",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH",
    }


def test_the_subsystems_of_the_user_stay(tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG_SUBSYS": "INIT,TUNING"}
    assert nccl.capture(tmp_path, 0, environment, tmp_path) == {}
    assert environment["NCCL_DEBUG_SUBSYS"] == "INIT,TUNING" and environment["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE"])
def test_a_variable_of_the_user_wins(tmp_path: Path, name: str) -> None:
    environment = {name: "mine"}
    assert nccl.capture(tmp_path, 0, environment, tmp_path) == {"nccl.log": f"not recorded: {name} is set"}
    assert environment == {name: "mine"}


@pytest.mark.parametrize(("place", "variables"), [
    ("etc/nccl.conf", {}),
    ("home/.nccl.conf", {"HOME": "{root}/home"}),
    ("own.conf", {"HOME": "{root}/home", "NCCL_CONF_FILE": "{root}/own.conf"}),
])  # fmt: skip
def test_a_configuration_file_of_the_user_wins(tmp_path: Path, place: str, variables: dict[str, str]) -> None:
    environment = {name: value.format(root=tmp_path) for name, value in variables.items()}
    before = dict(environment)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("# NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=eth0\n NCCL_DEBUG = WARN\n")
    assert nccl.capture(tmp_path, 0, environment, tmp_path) == {
        "nccl.log": f"not recorded: {path.name} sets NCCL_DEBUG"
    }
    assert environment == before
    path.write_text("NCCL_SOCKET_IFNAME=eth0\nNCCL_DEBUG_SUBSYS=ALL\n")
    assert nccl.capture(tmp_path, 0, environment, tmp_path) == {}
