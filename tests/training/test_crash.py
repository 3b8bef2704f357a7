"""Promise 4: a checkpoint exists whole or not at all, whichever write its process died after."""

from pathlib import Path

import pytest
import torch

from m5ws.records.store import Format
from m5ws.repository.fsck import fsck
from m5ws.repository.fsck.damage import Damage
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.checkpoint import checkpointing
from m5ws.training.checkpoint.writer import HostBuffers
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.runtime.stop import StopRequest
from tests.support.ranks.orders import orders
from tests.support.records import planted
from tests.support.stores.dying_store import Died, DyingStore

_RUN = "a" * 12


def _started(folder: Path) -> Repository:
    """Return a store in which a run's first attempt has begun."""
    repo = Repository.create(LocalStore(folder / "store"), Format(chunk_bytes=256, pack_bytes=512, small_bytes=128))
    snapshot = repo.objects.digest(b"none")
    planted.run(repo, _RUN, snapshot)
    planted.begin(repo, _RUN)
    return repo


def _save(repo: Repository, folder: Path) -> bool:
    """Save a small model in this process, as a rank does."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    context = orders(folder, store=repo.store.url, run=_RUN, snapshot=repo.objects.digest(b"none"))
    spool = SpoolWriter(folder / "0.spool", genesis(_RUN, 1, "0"))
    active = ActiveRank(
        context=context, repo=repo, spool=spool, stop=StopRequest(folder / "processes"), rank=0, world=1
    )
    backend = TorchBackend(model, optimizer)
    moment = checkpointing.TrainingState(step=1, common={}, rank={"generators": {}}, head=spool.head)
    return checkpointing.save(active, backend.stage(HostBuffers()), backend.format, None, moment, folder / "kept")


def _damage(repo: Repository) -> list[Damage]:
    """Return the damage except the damage of the run's snapshot, which these stores lack."""
    snapshot = repo.objects.digest(b"none")
    return [one for one in fsck.check(repo).damage if snapshot not in one.key and snapshot not in one.detail]


def test_a_checkpoint_survives_a_crash_after_every_single_write(tmp_path: Path) -> None:
    for lives in range(1000):
        folder = tmp_path / str(lives)
        (folder / "again").mkdir(parents=True)
        repo = _started(folder)
        dying = Repository(DyingStore(repo.store, lives), repo.format)
        try:
            assert _save(dying, folder)
        except Died:
            assert checkpoints.valid(repo, _RUN) == []
            assert _damage(repo) == []
            assert _save(repo, folder / "again")
        assert checkpoints.valid(repo, _RUN) == [checkpoints.name(1, 1)]
        assert _damage(repo) == []
        if dying.store.lives > 0:  # type: ignore[attr-defined]
            assert lives >= 10
            return
    pytest.fail("the save never ended")
