"""Exported ZeRO checkpoints: masters and moments by the model's names."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.files.exports import bits, export, recorded
from tests.support.ranks import forks
from tests.training.conftest import Runner

HERE = Path(__file__).parent
ZERO = {"1": (1, "bf16"), "3": (3, "bf16")}


@pytest.fixture(scope="module")
def zero(
    fork_parents: forks.ForkParents, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Repository, str]]:
    """Trainings by ZeRO stage on three ranks, in stores of their own, and the digests of their last checkpoints."""
    found = {}
    for name, (stage, dtype) in ZERO.items():
        folder = tmp_path_factory.mktemp(f"zero-{name}")
        runner = Runner(Repository.create(LocalStore(folder / "store")), folder, fork_parents)
        attempt = runner(str(HERE / "scripts" / "deepspeed_tiny.py"), str(stage), dtype, "3", ranks=3)
        assert attempt.status == 0 and attempt.newest is not None, attempt.log()
        found[name] = runner.repo, attempt.newest
    return found


@pytest.mark.parametrize("name", ZERO)
def test_masters_and_moments_have_the_models_names(
    zero: dict[str, tuple[Repository, str]], name: str, tmp_path: Path
) -> None:
    repo, digest = zero[name]
    export(repo, digest, "safetensors", tmp_path / "all", "all")
    export(repo, digest, "hf", tmp_path / "hf")
    said = recorded(repo, digest)
    found = load_file(tmp_path / "all" / "checkpoint.safetensors")
    trained = {one.removeprefix("master.") for one in said if one.startswith("master.")}
    expected = {f"model.{one}": said[f"master.{one}"] for one in trained}
    expected |= {"model.frozen.weight": said["model.frozen.weight"], "model.seen": said["buffer.seen@0"]}
    expected |= {
        f"optimizer.state.{one}.{moment}": said[f"optimizer.{one}.{moment}"]
        for one in trained
        for moment in ("exp_avg", "exp_avg_sq")
    }
    assert bits(found) == expected
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    assert bits(weights) == {
        one.removeprefix("model."): value for one, value in expected.items() if one[:6] == "model."
    }
