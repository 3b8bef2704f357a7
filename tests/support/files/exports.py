"""Exports made as by the command, and readers of them."""

from pathlib import Path
from typing import Any, cast

import torch

from m5ws import workspace
from m5ws.checkpoints import resolve
from m5ws.checkpoints.export import export as checkpoint_export
from m5ws.checkpoints.export.export import ExportRecord
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.repository.repository import Repository
from m5ws.training.fingerprint import fingerprint

TOOLS = workspace.export_tools()


def export(repo: Repository, text: str, form: str, target: Path, what: str = "weights", **more: Any) -> ExportRecord:
    which = resolve.resolve(repo, text)
    plan = checkpoint_export.plan(repo, which, cast(Any, form), cast(Any, what), TOOLS, **more)
    checkpoint_export.apply(repo, plan, target)
    return plan.planned


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: f"{value:016x}" for name, value in zip(tensors, fingerprint.sums(tensors.values()), strict=True)}


def recorded(repo: Repository, digest: str) -> dict[str, str]:
    """The state that the training itself recorded at its save."""
    content = repo.objects.get_record(repo.objects.get_record(digest, Checkpoint).content, Content)
    assert content.fingerprints is not None
    return cast(dict[str, str], codec.decode_plain(repo.objects.read(content.fingerprints)))
