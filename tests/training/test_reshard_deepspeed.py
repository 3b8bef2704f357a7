"""ZeRO checkpoints on another number of ranks: every stage, with and without offload, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from m5ws.records.ledger import State
from m5ws.repository.repository import Repository
from tests.support.ranks.forks import ForkParents
from tests.support.ranks.zero_lab import SCRIPTS, found, lab

CASES = ("zero2-fp32", "zero3-bf16")
MORE = ("zero1-bf16", "zero2-round-robin", "zero3-parameters", "zero3-no-offload", "zero0-fp32")
SAVED = 2
LOADED = (1, 3)
Labs = tuple[tuple[str, ...], Path, dict[int, Path]]


@pytest.fixture(scope="module", params=[CASES, pytest.param(MORE, marks=pytest.mark.soak)], ids=["cases", "more"])
def labs(request: pytest.FixtureRequest, fork_parents: ForkParents, tmp_path_factory: pytest.TempPathFactory) -> Labs:
    """Cases, the state that two ranks saved, and the state that other numbers of ranks loaded."""
    from m5ws.store.local import LocalStore

    cases = request.param
    directory = tmp_path_factory.mktemp("labs")
    Repository.create(LocalStore(directory / "store"))
    before = lab(fork_parents, directory, SAVED, *(f"before:{case}" for case in cases))
    after = [f"after:{case}" for case in cases]
    return cases, before, {ranks: lab(fork_parents, directory, ranks, *after) for ranks in LOADED}


def on_any_ranks(state: dict[str, str]) -> dict[str, str]:
    """The fingerprints without this model's buffers, which differ from rank to rank."""
    return {name: value for name, value in state.items() if not name.startswith("buffer.")}


@pytest.mark.parametrize("ranks", LOADED)
def test_all_state_is_the_same_on_another_number_of_ranks(labs: Labs, ranks: int) -> None:
    cases, before, after = labs[0], labs[1], labs[2][ranks]
    trained = {"first.weight", "first.bias", "scale", "last.weight", "last.bias"}
    for case in cases:
        was, now = found(before, f"before:{case}"), found(after, f"after:{case}")
        names = was["trained"]["state"].keys()
        assert {f"optimizer.{name}.{key}" for name in trained for key in ("exp_avg", "exp_avg_sq")} <= names, case
        assert "optimizer.step" in names, case
        for what in ("new", "trained"):
            assert on_any_ranks(now[what]["state"]) == on_any_ranks(was[what]["state"]), case
            # DeepSpeed gathers them itself.
            assert now[what]["masters"] == was[what]["masters"], case
        assert was["new"]["state"] != was["trained"]["state"], case


@pytest.mark.parametrize("ranks", LOADED)
def test_training_continues_on_other_ranks_and_is_saved_again(labs: Labs, ranks: int) -> None:
    cases, after = labs[0], labs[2][ranks]
    for case in cases:
        now = found(after, f"after:{case}")
        assert (now["new"]["steps"], now["trained"]["steps"]) == ([0, 0], [3, 3]), case
        assert now["new"]["lr"] == [1e-2, 1e-2] and now["trained"]["lr"] == [1e-2 / 1.3] * 2, case
        went_on, loaded_again = now["trained"]["again"]
        assert went_on == loaded_again, case
        assert on_any_ranks(went_on) != on_any_ranks(now["trained"]["state"]), case


def test_a_session_resumed_on_other_ranks_names_the_state_without_a_restore(runner: Any) -> None:
    script = str(SCRIPTS / "deepspeed_tiny.py")
    first = runner(script, "3", "bf16", "2", ranks=2)
    assert first.status == 0, first.log()
    second = runner(script, "3", "bf16", "3", ranks=3, resume=first.newest)
    assert second.status == 0, second.log()
    (restored,) = (event for event in second.of(State) if event.restored)
    saved = first.states(0)[2][0]
    alike = {name for name in saved if "@" not in name}
    assert {name: restored.tensors[name] for name in alike} == {name: saved[name] for name in alike}
    assert {name.partition(".")[0] for name in alike} == {"buffer", "master", "model", "optimizer"}
    assert list(second.steps(0)) == [3]
    (said,) = (line for line in second.notices("resume-limit") if "made by 2 ranks and there are 3" in line)
    assert "generators" in said and "position in the data" in said
