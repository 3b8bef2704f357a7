"""A workspace with a run, its replay and a damaged run, made through the repository."""

from pathlib import Path

import msgspec
import pytest
import torch

from m5ws import workspace
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.exact import encode
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, Event, Step
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import LaunchSpec
from m5ws.records.verdict import Divergence, Verdict
from m5ws.repository.files import trees
from m5ws.repository.references import checkpoints, outputs, runs
from m5ws.repository.repository import Repository
from tests.support.records import planted, tensor_states
from tests.support.workspace.checkouts import write

BEGIN_S = 1_700_000_000.0


class Planted(msgspec.Struct, frozen=True):
    """A workspace, its store, the snapshot of its runs, and the weights at each checkpoint."""

    root: Path
    repo: Repository
    snapshot: str
    weights: dict[int, dict[str, torch.Tensor]]

    run = "7c1d00000001"
    replay = "7c1d00000002"


def loss(step: int) -> float:
    """Return the loss that is planted for a step: not a number in step 3."""
    return float("nan") if step == 3 else 2.0 / step


@pytest.fixture
def planted_workspace(tmp_path: Path) -> Planted:
    return plant(tmp_path)


def plant(folder: Path) -> Planted:
    """Make two attempts of a run, the second from step 2 on, with a checkpoint after steps 2 and 4; and a replay."""
    root = folder / "work"
    write(root, {"m5ws.toml": "name = 'work'\n[mlflow]\nenabled = false\n"})
    repo = workspace.find(root, {}).repository(create=True)
    code = planted.tree(repo, folder / "code", {"train.py": "print('trained')\n"})
    config = planted.tree(repo, folder / "config", {"config.yaml": "optimizer:\n  lr: 0.1\n"})
    snapshot = planted.publish(repo, planted.snapshot(code, config=config))
    weights = {step: _weights(step) for step in (2, 4)}
    found = Planted(root, repo, snapshot, weights)
    spec = LaunchSpec(command=("train.py", "--epochs", "3"), seed=7)
    planted.run(repo, found.run, snapshot, spec=spec, name="baseline", created_s=BEGIN_S, user="ana", host="node-7")
    planted.run(
        repo, found.replay, snapshot, spec=spec, purpose="reproduce", reproduces=found.run, created_s=BEGIN_S + 60
    )
    _train(found)
    first = Divergence(step=4, rank=0, quantity="loss", original="0x1p-1", replayed="0x1p+0")
    verdict = Verdict(run=found.run, replay=found.replay, outcome="diverged", first=first, created_s=BEGIN_S + 120)
    runs.publish_verdict(repo, verdict)
    _write_outputs(found, folder / "outputs")
    return found


def _weights(step: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2, 3), float(step)), "bias": torch.tensor([0.5, float("nan")])}


def _train(made: Planted) -> None:
    planted.begin(made.repo, made.run, time_s=BEGIN_S)
    planted.append(made.repo, made.run, 1, "0", *map(_step, (1, 2, 3)), _checkpoint(made, 2, 1))
    resume = checkpoints.name(2, 1)
    planted.begin(made.repo, made.run, 2, time_s=BEGIN_S + 10, resume=resume, inherits=(resume,))
    planted.append(made.repo, made.run, 2, "0", *map(_step, (3, 4)), _checkpoint(made, 4, 2))
    planted.append(made.repo, made.run, 2, "1", *map(_step, (3, 4)))
    planted.append(made.repo, made.run, 2, NODE, AttemptEnded(outcome="finished", exit_code=0))


def _step(step: int) -> Event:
    quantities = {"loss": encode(loss(step)), "lr": (0.1).hex(), "digest": "beef:text"}
    return Step(time_s=BEGIN_S + step, step=step, quantities=quantities, tokens=64, seconds=0.5, total=4)


def _checkpoint(made: Planted, step: int, attempt: int) -> Event:
    tensors = {f"model.{name}": tensor for name, tensor in made.weights[step].items()}
    tensors["optimizer.weight.exp_avg"] = torch.zeros(2, 3)
    content = tensor_states.save(tensors, made.repo.objects)
    digest = planted.checkpoint(made.repo, made.run, step, content, attempt=attempt)
    stored = made.repo.objects.digest(codec.encode(content))
    name = checkpoints.name(step, attempt)
    return CheckpointPublished(time_s=BEGIN_S + step, step=step, name=name, checkpoint=digest, content=stored)


def _write_outputs(made: Planted, folder: Path) -> None:
    write(folder, {"results/scores.json": '{"accuracy": 0.5}\n'})
    tree = trees.write_tree(made.repo.objects, planted.sources(folder, ["results/scores.json"]))
    content = Content(format="files/1", world=1, tree=tree.digest)
    stored = made.repo.objects.put_record(content)
    outputs.publish(
        made.repo,
        OutputFiles(run=made.run, snapshot=made.snapshot, attempt=2, node=0, moment=outputs.FINAL, content=stored),
    )
