"""ZeRO 1, 2 and 3 with offload: saved and loaded bit for bit, killed and resumed, fingerprints of any layout."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from m5ws.records.checkpoint import Content
from m5ws.records.launch import Saving
from m5ws.records.ledger import State
from m5ws.repository import contents
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.ranks.forks import ForkParents
from tests.support.ranks.zero_lab import found, lab

SCRIPTS = Path(__file__).parent / "scripts"
CASES = ("zero2-bf16", "zero3-bf16", "zero0-fp32")
MORE = ("zero1-bf16", "zero2-round-robin", "zero3-parameters", "zero3-fp32", "zero3-no-offload")
Trained = tuple[tuple[str, ...], Path]


def _store(directory: Path) -> Path:
    Repository.create(LocalStore(directory / "store"))
    return directory


@pytest.fixture(scope="module", params=[CASES, pytest.param(MORE, marks=pytest.mark.soak)], ids=["cases", "more"])
def exact(
    request: pytest.FixtureRequest, fork_parents: ForkParents, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """Cases, and the results of three ranks that saved, loaded and continued."""
    directory = _store(tmp_path_factory.mktemp("exact"))
    return request.param, lab(fork_parents, directory, 3, *(f"exact:{case}" for case in request.param))


@pytest.fixture(scope="module")
def three(fork_parents: ForkParents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of three ranks."""
    return lab(fork_parents, _store(tmp_path_factory.mktemp("three")), 3, "weights", "refusals")


@pytest.fixture(scope="module")
def two(fork_parents: ForkParents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lab(fork_parents, _store(tmp_path_factory.mktemp("two")), 2, "weights")


@pytest.mark.parametrize("rank", range(3))
def test_a_loaded_engine_continues_as_the_saved_engine(exact: Trained, rank: int) -> None:
    cases, out = exact
    for case in cases:
        result = found(out, f"exact:{case}", rank)
        whole = result["whole"]
        assert len({json.dumps(state) for _, state in whole.values()}) == len(whole), case
        for start, part in result["resumed"].items():
            assert set(part["states"]) == {str(step) for step in range(int(start), 9)}
            for step, values in part["states"].items():
                assert values == whole[step], f"{case}, resumed after {start}, at {step}"


def test_equal_states_have_equal_contents(exact: Trained) -> None:
    cases, out = exact
    for case in cases:
        result = found(out, f"exact:{case}")
        assert result["again"][0] == result["again"][1], case
        assert [part["end"] for part in result["resumed"].values()] == [result["again"][0]] * 2, case
        assert [part["resaved"] for part in result["resumed"].values()] == list(result["saved"].values()), case
        assert len({*result["saved"].values(), *result["again"]}) == 3, case


def test_fingerprints_name_parameters_masters_and_moments(exact: Trained) -> None:
    cases, out = exact
    trained = {"first.weight", "first.bias", "scale", "last.weight", "last.bias"}
    for case in cases:
        names = set(found(out, f"exact:{case}")["whole"]["8"][1])
        assert {f"model.{name}" for name in {*trained, "frozen.weight"}} <= names, case
        assert {f"optimizer.{name}.{key}" for name in trained for key in ("exp_avg", "exp_avg_sq")} <= names, case
        masters = {name for name in names if name.startswith("master.")}
        assert masters == (set() if case.startswith("zero0") else {f"master.{name}" for name in trained}), case
        assert ("optimizer.cpu_adam" in names) == ("no-offload" not in case and "zero0" not in case), case


@pytest.mark.parametrize("ranks", [2, 3])
def test_fingerprints_of_shards_equal_fingerprints_of_whole_tensors(two: Path, three: Path, ranks: int) -> None:
    for what, values in found({2: two, 3: three}[ranks], "weights").items():
        assert values["expected"], what
        assert values["state"] == values["expected"], what


def test_the_same_weights_have_the_same_fingerprints_on_two_and_three_ranks(two: Path, three: Path) -> None:
    small, large = found(two, "weights"), found(three, "weights")
    firsts = [what for what in small if what.endswith("first")]
    assert len(firsts) == 3
    for what in firsts:
        assert small[what] == large[what]
        assert small[what]["state"] == small[firsts[0]]["state"], "ZeRO 2 and 3 differ in the same weights"


@pytest.mark.parametrize("rank", range(3))
def test_state_that_cannot_be_restored_is_refused(three: Path, rank: int) -> None:
    assert found(three, "refusals", rank) == {
        "not known": "StateError: levitation",
        "other engine": "UnsupportedVersion: _get_ckpt_name",
        "between steps": "StateError: between two optimizer steps",
        "other stage": "RestoreError: the checkpoint has no",
        "damaged on one rank": "CorruptObject" if rank == 1 else "RestoreError: rank 1 could not read",
    }


def test_a_run_killed_at_critical_steps_equals_an_uninterrupted_run(runner: Any) -> None:
    # Saved before the next step begins, so that the last checkpoint before a kill is known.
    runner.saving = Saving(asynchronous=False)
    script, ranks, steps = str(SCRIPTS / "deepspeed_tiny.py"), 3, "20"
    whole = runner(script, "2", "bf16", steps, ranks=ranks)
    assert whole.status == 0, whole.log()
    assert sorted(whole.contents) == list(range(1, 21))

    runner.run = "000000000002"
    parts, resume = [], None
    for number, last in enumerate((2, 5, 18, 20)):
        kill = f"{number % ranks}:{last + 1}:{signal.SIGKILL:d}"
        part = runner(script, "2", "bf16", steps, ranks=ranks, resume=resume, kill=kill)
        assert (part.status == 0) == (last == 20), part.log()
        assert max(part.contents) == last
        parts.append(part)
        resume = part.newest
    assert [min(part.steps(0)) for part in parts] == [1, 3, 6, 19]
    for part in parts:
        assert part.contents == {step: whole.contents[step] for step in part.contents}
        for rank in range(ranks):
            assert part.steps(rank) == {step: whole.steps(rank)[step] for step in part.steps(rank)}
            assert part.states(rank) == {step: whole.states(rank)[step] for step in part.states(rank)}
    assert [event.step for part in parts for event in part.of(State) if event.restored] == [2, 5, 18]


def test_a_checkpoint_holds_no_path_time_or_host(exact: Trained) -> None:
    cases, out = exact
    objects = Repository.open(LocalStore(out.parent / "store")).objects
    for case in cases:
        content = objects.get_record(found(out, f"exact:{case}")["again"][0], Content)
        structures = b"".join(objects.read(blob) for blob in contents.blobs(objects, content).values())
        assert b"param_groups" in structures
        for word in (os.uname().nodename, "/tmp", str(out.parent), "zero_optimization", "train_micro_batch_size"):
            assert word.encode() not in structures
