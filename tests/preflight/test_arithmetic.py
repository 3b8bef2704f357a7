"""Known arithmetic: its exact digests, a planted wrong bit, and machines that differ from their kind."""

import os
import sys
from pathlib import Path

import blake3
import msgspec
import pytest
import torch

from m5ws.preflight import arithmetic
from m5ws.records.known import Arithmetic, Computed
from m5ws.repository.references import known
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.training.tools import known_digest
from tests.support.faults import wrong_bits
from tests.support.waiting import is_alive, wait_for
from tests.support.workspace.command_line import inherited

_OTHER = "1" * 64


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _result(host: str, rounded: str = "0" * 64, rate: int = 100) -> Arithmetic:
    """Return the result of a healthy machine with one processor."""
    place = Computed(place="cpu 0", exact=(arithmetic.EXACT["cpu"],), rounded=(rounded,), repetitions=2)
    return Arithmetic(host=host, kind={"torch": "2"}, ranks=2, computed=(place,), rates={"memory": rate})


@pytest.mark.parametrize(("unit", "size"), [("cpu", 256), pytest.param("gpu", 2048, marks=pytest.mark.soak)])
def test_exact_digests_follow_from_integers(unit: str, size: int) -> None:
    digest = blake3.blake3()
    # Every partial sum of -1, 0 and 1 is an integer that float64 has.
    first, second = ((known_digest.integers(size * size, seed, 3) - 1).reshape(size, size) for seed in (1, 2))
    product = (first.double() @ second.double()).long()
    for dtype in (torch.float32, torch.bfloat16):
        results = (product.to(dtype), product.sum(0).float())
        assert torch.equal(results[0].long(), product), "an integer of the product has no exact form"
        for result in results:
            digest.update(result.contiguous().view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == arithmetic.EXACT[unit]


def test_a_planted_wrong_bit_names_the_processor_and_the_host(repo: Repository, tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    faulty = arithmetic.measure(sys.executable, inherited() | wrong_bits.plant(tmp_path, cpu), 0.0)
    checks = {check.name: check for check in arithmetic.judge(repo, faulty)}
    assert checks["arithmetic"].state == "failed" and checks["all-reduce"].state == "ok"
    assert checks["arithmetic"].detail == f"cpu {cpu} of {faulty.host} computed a wrong result"
    # A faulty machine is no reference for others.
    assert known.of_kind(repo, arithmetic.kind_of(faulty)) == []


def test_the_ranks_of_arithmetic_that_does_not_end_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, started = tmp_path / "python", tmp_path / "started"
    python.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {started}\nwait\n")
    python.chmod(0o755)
    monkeypatch.setattr(arithmetic, "_LIMIT_S", 2.0)
    with pytest.raises(arithmetic.NotComputed, match="did not end"):
        arithmetic.measure(os.fspath(python), inherited(), 0.0)
    wait_for(lambda: not is_alive(int(started.read_text())))


def test_a_host_has_one_record_a_day_of_equal_digests(repo: Repository) -> None:
    for digest in ("0" * 64, "0" * 64, _OTHER, "0" * 64):
        arithmetic.judge(repo, _result("n1", digest))
    records = known.of_kind(repo, arithmetic.kind_of(_result("n1")))
    # Two results of one millisecond have no order.
    assert sorted(record.digests["cpu"] for record in records) == ["0" * 64, _OTHER]
    known.publish(repo, msgspec.structs.replace(records[0], created_s=records[0].created_s + 25 * 3600))
    assert len(known.of_kind(repo, records[0].kind)) == 3


def test_a_result_that_differs_between_repetitions_fails(repo: Repository) -> None:
    healthy = _result("n1")
    unstable = msgspec.structs.replace(healthy.computed[0], rounded=("0" * 64, _OTHER))
    check, *_ = arithmetic.judge(repo, msgspec.structs.replace(healthy, computed=(unstable,)))
    assert check.state == "failed" and "cpu 0 of n1 gave different bits" in check.detail


def test_a_machine_with_other_bits_than_its_kind_is_named_with_the_first_host(repo: Repository) -> None:
    for host in ("n1", "n2"):
        assert arithmetic.judge(repo, _result(host))[0].state == "ok"
    check, *_ = arithmetic.judge(repo, _result("n3", _OTHER))
    assert check.state == "failed" and "n3 computes other bits (cpu) than n1, n2" in check.detail
    assert "n1 recorded the first result" in check.detail


def test_most_hosts_outvote_a_faulty_first_host(repo: Repository) -> None:
    states = [arithmetic.judge(repo, _result(host, digest))[0].state for host, digest in (
        ("bad", _OTHER), ("n1", "0" * 64), ("n2", "0" * 64), ("n3", "0" * 64), ("bad", _OTHER)
    )]  # fmt: skip
    assert states == ["ok", "failed", "ok", "ok", "failed"]


def test_wrong_sums_name_their_ranks(repo: Repository) -> None:
    _, check, _ = arithmetic.judge(repo, msgspec.structs.replace(_result("n1"), wrong_sums={"1": 3}))
    assert check.state == "failed" and "rank 1: 3 wrong values" in check.detail


def test_a_slow_machine_gets_a_warning_after_five_records(repo: Repository) -> None:
    rates = enumerate((100, 100, 10, 110, 90, 71, 60))
    states = [arithmetic.judge(repo, _result(f"n{host}", rate=rate))[2].state for host, rate in rates]
    assert states == ["ok"] * 6 + ["warning"]
