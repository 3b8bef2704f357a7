"""The last collectives of ranks: read from records of torch itself, asked for by a pipe, and used in the vote.

No test here has a GPU. The records are of gloo, which has the same recorder; a thread stands in for NCCL's.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from m5ws.records.launch import FLIGHT
from m5ws.records.stacks import Collective, Frame, RankStack
from m5ws.supervision import flight_recorder, vote
from m5ws.training.runtime import nccl
from tests.support.waiting import wait_for

_SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

kind, rank, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
for _ in range(4):
    dist.all_reduce(torch.zeros(2, 3))
dist.barrier()
is_last = rank == 2
if kind == "never entered" and not is_last:
    dist.all_reduce(torch.zeros(5), async_op=True)
elif kind == "mismatch" and is_last:
    dist.broadcast(torch.zeros(5), src=0, async_op=True)
elif kind == "mismatch":
    dist.all_reduce(torch.zeros(5), async_op=True)
time.sleep(1)
with open(f"{folder}/dump-{rank}", "wb") as file:
    file.write(_dump_fr_trace(True, True, False))
while not all(os.path.exists(f"{folder}/dump-{other}") for other in range(3)):
    time.sleep(0.05)
time.sleep(0.5)
os._exit(0)
"""


def _records(folder: Path, kind: str) -> dict[int, tuple[Collective, ...]]:
    """Return the collectives in the records of three real ranks."""
    script = folder / "train.py"
    script.write_text(_SCRIPT)
    ranks = [subprocess.Popen([sys.executable, str(script), kind, str(rank), str(folder)]) for rank in range(3)]
    assert [rank.wait(120) for rank in ranks] == [0, 0, 0]
    return {rank: flight_recorder.parse((folder / f"dump-{rank}").read_bytes()) for rank in range(3)}


def _stacks(records: Mapping[int, tuple[Collective, ...]], frames: tuple[Frame, ...] = ()) -> list[RankStack]:
    return [
        RankStack(rank=rank, host="n1", pid=1, step=7, phase="step", waited_s=61.0, limit_s=60.0, is_late=True,
                  state="S", frames=frames, collectives=record)
        for rank, record in records.items()
    ]  # fmt: skip


@pytest.mark.long
def test_a_rank_that_never_entered_a_collective_is_named_by_real_records(tmp_path: Path) -> None:
    records = _records(tmp_path, "never entered")
    [wait], [last] = records[0], records[2]
    assert (wait.name, wait.sizes, wait.state != "completed") == ("all_reduce", ((5,),), True)
    assert (last.name, last.state, wait.number) == ("barrier", "completed", last.number + 1)
    assert wait.group == last.group and wait.group.strip() == "0 default_pg"
    stacks = _stacks(records)
    found = vote.vote(stacks, 3)
    assert (found.ranks, found.rule) == ((2,), "number")
    sentence = vote.describe_all(stacks, found)
    assert sentence.endswith(f"others wait in all_reduce {wait.number:,}, which rank 2 never entered")


@pytest.mark.long
def test_a_rank_in_another_collective_is_named_by_real_records(tmp_path: Path) -> None:
    stacks = _stacks(_records(tmp_path, "mismatch"))
    found = vote.vote(stacks, 3)
    assert (found.ranks, found.rule) == ((2,), "mismatch")
    number = stacks[0].collectives[0].number
    sentence = vote.describe_all(stacks, found)
    assert sentence.endswith(f"as collective {number:,}, ranks 0, 1 entered all_reduce and rank 2 entered broadcast")
    assert vote.vote(stacks[1:], 2).ranks == ()
    assert "entered broadcast" in vote.describe_all(stacks[1:], vote.vote(stacks[1:], 2))


def _collective(number: int, state: str, group: str = "0") -> Collective:
    return Collective(group=group, number=number, name="all_reduce", state=state)


GLOO = (
    Frame(file="/x/site-packages/torch/distributed/distributed_c10d.py", line=3, function="barrier"),
    Frame(file="train.py", line=40, function="main"),
)
BACKWARD = (
    Frame(file="/x/site-packages/torch/autograd/graph.py", line=8, function="_engine_run_backward"),
    Frame(file="train.py", line=41, function="main"),
)


@pytest.mark.parametrize(
    ("records", "ranks"),
    [
        ([_collective(7, "started"), _collective(6, "completed"), _collective(7, "started")], (1,)),
        # One rank waits, and two never came: they are the most.
        ([_collective(7, "started"), _collective(6, "completed"), _collective(6, "completed")], ()),
        # All completed the last collective, or all wait in it.
        ([_collective(7, "completed")] * 3, ()),
        ([_collective(7, "started")] * 3, ()),
        # Numbers of two groups are not compared.
        ([_collective(7, "started"), _collective(3, "completed", "1"), _collective(7, "started")], ()),
    ],
)
def test_numbers_of_one_group_are_compared(records: list[Collective], ranks: tuple[int, ...]) -> None:
    stacks = _stacks({rank: (record,) for rank, record in enumerate(records)}, BACKWARD)
    assert vote.vote(stacks, 3).ranks == ranks


def test_a_rank_that_waits_in_an_unrecorded_collective_is_not_named_by_its_number() -> None:
    records = {0: (_collective(7, "started"),), 1: (_collective(6, "completed"),), 2: (_collective(7, "started"),)}
    assert vote.vote(_stacks(records, GLOO), 3).rule != "number"


def test_the_first_collective_that_is_not_completed_counts() -> None:
    entries = [
        {"record_id": number, "process_group": ("0", "default_pg"), "collective_seq_id": number,
         "profiling_name": "nccl:all_reduce", "state": "completed" if number < 5 else "scheduled",
         "is_p2p": number == 6, "retired": number == 3, "input_sizes": [[number]]}
        for number in range(3, 9)
    ]  # fmt: skip
    assert flight_recorder.parse(
        pickle.dumps({"entries": entries, "pg_config": {"0": {"ranks": "[0, 1]"}}}, protocol=2)
    ) == (Collective(group="0 default_pg [0, 1]", number=5, name="all_reduce", state="scheduled", sizes=((5,),)),)


@pytest.mark.parametrize("data", [b"", b"\x80\x02", pickle.dumps(7), pickle.dumps({"entries": [1]}), b"cos\nsystem\n."])
def test_other_data_is_refused_and_no_code_of_it_runs(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        flight_recorder.parse(data)


def test_the_user_wins_and_without_pipes_nothing_is_set(tmp_path: Path) -> None:
    environment = {"TORCH_FR_DUMP_TEMP_FILE": "mine"}
    nccl.record_collectives(tmp_path, 0, environment)
    assert environment == {"TORCH_FR_DUMP_TEMP_FILE": "mine"}
    nccl.record_collectives(tmp_path / "missing", 0, missing := dict[str, str]())
    assert not missing and list(tmp_path.iterdir()) == []


def test_a_byte_in_the_pipe_of_a_rank_brings_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = dict[str, str]()
    nccl.record_collectives(tmp_path, 3, environment)
    assert set(environment.values()) == {f"{tmp_path}/{FLIGHT}3-"} and list(tmp_path.iterdir()) == []
    _, problem = flight_recorder.read(tmp_path, 3)
    assert problem is not None and "cannot be asked" in problem
    # As torch's DumpPipe and DebugInfoWriter do.
    os.mkfifo(f"{environment['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}3.pipe")
    _, problem = flight_recorder.read(tmp_path, 3)
    assert problem is not None and "cannot be asked" in problem
    pipe = os.open(tmp_path / f"{FLIGHT}3-3.pipe", os.O_RDONLY | os.O_NONBLOCK)

    def answer() -> None:
        wait_for(lambda: _read(pipe) == b"1")
        Path(f"{environment['TORCH_NCCL_DEBUG_INFO_TEMP_FILE']}3").write_bytes(
            pickle.dumps({"entries": []}, protocol=2)
        )

    thread = threading.Thread(target=answer)
    thread.start()
    assert flight_recorder.read(tmp_path, 3) == ((), None)
    thread.join()
    monkeypatch.setattr(flight_recorder, "_POLLS", 2)
    assert flight_recorder.read(tmp_path, 3) == ((), "torch's flight recorder did not answer")
    os.close(pipe)
    # A rank whose process group has ended may have written its record before.
    (tmp_path / f"{FLIGHT}3-3").write_bytes(pickle.dumps({"entries": []}, protocol=2))
    assert flight_recorder.read(tmp_path, 3) == ((), None)


def _read(pipe: int) -> bytes:
    """Read a pipe without a wait."""
    with suppress(BlockingIOError):
        return os.read(pipe, 128)
    return b""
