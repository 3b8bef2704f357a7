"""Exported ZeRO checkpoints, loaded by DeepSpeed's own engine and scripts, also on another number of ranks."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import torch

from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.files import safetensors_reader
from tests.support.files.exports import bits, export, loaded_by_torch, recorded
from tests.support.ranks import forks
from tests.training.conftest import Runner

HERE = Path(__file__).parent
ZERO = {"1": (1, "bf16"), "3": (3, "bf16")}


@pytest.fixture(scope="module")
def zero(
    fork_parents: forks.ForkParents, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Repository, str, Path]]:
    """Trainings by ZeRO stage on three ranks, in stores of their own, and DeepSpeed's files of their last steps."""
    found = {}
    for name, (stage, dtype) in ZERO.items():
        folder = tmp_path_factory.mktemp(f"zero-{name}")
        runner = Runner(Repository.create(LocalStore(folder / "store")), folder, fork_parents)
        attempt = runner(str(HERE / "scripts" / "deepspeed_tiny.py"), str(stage), dtype, "3", ranks=3)
        assert attempt.status == 0 and attempt.newest is not None, attempt.log()
        export(runner.repo, attempt.newest, "deepspeed", folder / "deepspeed")
        found[name] = runner.repo, attempt.newest, folder
    return found


def comparable(found: dict[str, str]) -> dict[str, str]:
    """The state that DeepSpeed itself saves and loads: without CPUAdam's beta powers and non-persistent buffers."""
    return {name: value for name, value in found.items() if not name.startswith(("buffer.", "optimizer.cpu_adam"))}


def load_with_deepspeed(
    parents: forks.ForkParents,
    zero: dict[str, tuple[Repository, str, Path]],
    out: Path,
    ranks: int,
    form: str,
    more: str = "",
) -> list[dict[str, str]]:
    """Return the fingerprints of DeepSpeed's state after it has loaded each export on this number of ranks."""
    cases = [
        f"{folder / form}:{stage}:{dtype}{more}"
        for (_, _, folder), (stage, dtype) in zip(zero.values(), ZERO.values(), strict=True)
    ]
    status, log = forks.run(
        parents,
        *(str(HERE / "scripts" / "deepspeed_load.py"), str(out), *cases),
        directory=out,
        ranks=ranks,
        deepspeed=True,
        environment={"GLOO_SOCKET_IFNAME": "lo"},
    )
    assert status == 0, log[-4000:]
    return [json.loads((out / f"{number}.json").read_text()) for number in range(len(cases))]


def test_deepspeeds_own_engine_loads_its_files(
    fork_parents: forks.ForkParents, zero: dict[str, tuple[Repository, str, Path]], tmp_path: Path
) -> None:
    found = load_with_deepspeed(fork_parents, zero, tmp_path, 3, "deepspeed")
    for loaded, (repo, digest, _) in zip(found, zero.values(), strict=True):
        assert comparable(loaded) == comparable(recorded(repo, digest))


@pytest.mark.long
def test_deepspeed_converts_its_files_and_loads_them_on_other_ranks(
    fork_parents: forks.ForkParents, zero: dict[str, tuple[Repository, str, Path]], tmp_path: Path
) -> None:
    for _, _, folder in zero.values():
        step = folder / "deepspeed" / "global_step3"
        arguments = ["--inject_missing_state", "--input_folder", str(step), "--output_folder", f"{step}_universal"]
        command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = load_with_deepspeed(fork_parents, zero, tmp_path, 2, "deepspeed", ":universal")
    for loaded, (repo, digest, _) in zip(found, zero.values(), strict=True):
        # DeepSpeed does not load frozen parameters from it.
        said = {name: value for name, value in comparable(recorded(repo, digest)).items() if "frozen" not in name}
        assert {f"optimizer.{one}" for one in ("first.weight.exp_avg", "scale.exp_avg_sq", "step")} <= said.keys()
        assert {"master.first.weight", "model.first.weight"} <= said.keys()
        assert {name: loaded[name] for name in said} == said


@pytest.mark.parametrize("name", ZERO)
def test_masters_and_moments_have_the_models_names(
    zero: dict[str, tuple[Repository, str, Path]], name: str, tmp_path: Path
) -> None:
    repo, digest, folder = zero[name]
    export(repo, digest, "dcp", tmp_path / "dcp")
    export(repo, digest, "hf", tmp_path / "hf")
    said = recorded(repo, digest)
    found = loaded_by_torch(tmp_path / "dcp")
    trained = {one.removeprefix("master.") for one in said if one.startswith("master.")}
    expected = {f"model.{one}": said[f"master.{one}"] for one in trained}
    expected |= {"model.frozen.weight": said["model.frozen.weight"], "model.seen": said["buffer.seen@0"]}
    expected |= {
        f"optimizer.state.{one}.{moment}": said[f"optimizer.{one}.{moment}"]
        for one in trained
        for moment in ("exp_avg", "exp_avg_sq")
    }
    assert bits(found) == expected
    weights, _ = safetensors_reader.load(tmp_path / "hf" / "model.safetensors")
    assert bits(weights) == {
        one.removeprefix("model."): value for one, value in expected.items() if one[:6] == "model."
    }
    theirs = _zero_to_fp32(folder / "deepspeed")
    # DeepSpeed's own script leaves out frozen parameters under ZeRO 1.
    assert weights.keys() - theirs.keys() == ({"frozen.weight"} if name == "1" else set())
    assert bits({one: tensor.contiguous() for one, tensor in theirs.items()}) == bits(
        {one: tensor.to(theirs[one].dtype) for one, tensor in weights.items() if one in theirs}
    )


def _zero_to_fp32(directory: Path) -> dict[str, torch.Tensor]:
    from deepspeed.utils import zero_to_fp32

    with contextlib.redirect_stdout(io.StringIO()):
        found = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(directory))
    return cast(dict[str, torch.Tensor], found)
