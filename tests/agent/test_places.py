"""The place of a node, from the variables of the program that started its agent."""

import os

import pytest

from m5ws.agent import places
from m5ws.errors import UsageError
from m5ws.launch import network
from m5ws.records.launch import Saving

_BATCH = {
    "AWS_BATCH_JOB_ID": "0a1b", "AWS_BATCH_JOB_ATTEMPT": "2", "AWS_BATCH_JOB_NUM_NODES": "3",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
}  # fmt: skip
_CHILD = _BATCH | {"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.7"}
_MAIN = _BATCH | {"AWS_BATCH_JOB_NODE_INDEX": "0"}
_SLURM = {"SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
_POD = {
    "JOB_COMPLETION_INDEX": "1",
    "M5WS_NODES": "2",
    "M5WS_JOB": "u-1",
    "M5WS_RESTART": "3",
    "M5WS_MASTER": "j-0.j:29",
}
_SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_TASK_ID": "sky-7",
    "SKYPILOT_NODE_IPS": "10.0.0.8\n10.0.0.9",
}  # fmt: skip
_DSTACK = {
    "DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_RUN_ID": "r-1", "DSTACK_MASTER_NODE_IP": "10.0.0.8",
}  # fmt: skip
_OWN = {"M5WS_NODE": "1", "M5WS_NODES": "2", "M5WS_JOB": "j", "M5WS_MASTER": "[fd00::1]:29000"}


_JOBS = ("j", "slurm:7", "batch:0a1b", "kubernetes:u-1", "skypilot:sky-7", "dstack:r-1")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (_OWN, ("j", 1, 2, "fd00::1", 29_000)),
        (_SLURM | {"M5WS_MASTER": "n1:20000"}, ("slurm:7.1", 1, 2, "n1", 20_000)),
        (_CHILD, ("batch:0a1b.2", 1, 3, "10.0.0.7", 29_500)),
        (_MAIN, ("batch:0a1b.2", 0, 3, "10.0.0.7", 29_500)),
        (_MAIN | {"M5WS_MASTER": "10.0.0.9:29000"}, ("batch:0a1b.2", 0, 3, "10.0.0.9", 29_000)),
        (_CHILD | _OWN, ("j", 1, 2, "fd00::1", 29_000)),
        (_POD, ("kubernetes:u-1.3", 1, 2, "j-0.j", 29)),
        (_SKYPILOT, ("skypilot:sky-7", 1, 2, "10.0.0.8", 29_500)),
        (_DSTACK, ("dstack:r-1", 1, 2, "10.0.0.8", 29_500)),
    ],
)
def test_each_engine_names_the_place_of_a_node(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[str, int, int, str, int]
) -> None:
    # AWS Batch names the address of the main node to the other nodes alone.
    monkeypatch.setattr(network, "address_here", lambda: "10.0.0.7")
    place = places.read(environment)
    assert (place.job, place.node, place.nodes, place.master, place.port) == expected
    assert place.job is not None and places.without_restart(place.job) in _JOBS


@pytest.mark.parametrize(("engine", "name"), [(_SKYPILOT, "SKYPILOT_NODE_IPS"), (_DSTACK, "DSTACK_MASTER_NODE_IP")])
def test_an_empty_address_is_no_place(engine: dict[str, str], name: str) -> None:
    with pytest.raises(UsageError, match="is no place"):
        places.read(engine | {name: ""})


@pytest.mark.parametrize("engine", [_OWN, _SLURM | {"M5WS_MASTER": "n1:20000"}, _CHILD, _POD, _SKYPILOT, _DSTACK])
def test_a_missing_variable_is_named(engine: dict[str, str]) -> None:
    # Without its number of restarts, a job of Slurm has not been started again; Batch counts from 1.
    optional = {"SLURM_RESTART_COUNT", "AWS_BATCH_JOB_ATTEMPT", "M5WS_RESTART"}
    for name in engine.keys() - optional:
        with pytest.raises(UsageError, match=r"is not|no variable"):
            places.read({key: value for key, value in engine.items() if key != name})


def test_a_job_of_batch_that_another_node_leads_is_refused() -> None:
    with pytest.raises(UsageError, match="main node of this job is node 1"):
        places.read(_CHILD | {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"})


def test_the_folder_of_copies_is_of_the_user_and_has_variables_of_the_node() -> None:
    own, environment = f"m5ws-{os.getuid()}", {"DISK": "/nvme"}
    texts = (None, "/ssd", "$DISK/a", "${DISK}", "$TAPE/a")
    found = [places.folder_of_copies(Saving(local=text), environment) for text in texts]
    assert found == ["", f"/ssd/{own}", f"/nvme/a/{own}", f"/nvme/{own}", ""]
