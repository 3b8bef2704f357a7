"""Resume of a script whose framework saves checkpoints itself: Hugging Face's Trainer, and Lightning.

`m5ws run --resume` puts the output files back. A script that passes no checkpoint to the framework would start at
step 1. Here the framework's own method gets its newest checkpoint, as its documentation describes. A checkpoint, or
`False`, that the script passes itself stays as it is. The next steps are compared with earlier ones (`observation`).
"""

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from m5ws.training.frameworks import after_import, lightning_state
from m5ws.training.runtime.context import ActiveRank


def install(active: ActiveRank) -> None:
    """Let frameworks of a later attempt continue from their newest checkpoint, once the script imports them."""
    if active.context.attempt < 2 or active.context.resume is not None:
        return
    after_import.change("transformers.trainer", functools.partial(_trainer, active))
    for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
        after_import.change(name, functools.partial(_lightning, active))


def _trainer(active: ActiveRank, module: ModuleType) -> None:
    """https://huggingface.co/docs/transformers/main_classes/trainer: `Trainer.train(resume_from_checkpoint=…)`."""
    original: Callable[..., Any] = module.Trainer.train

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint is None and os.path.isdir(self.args.output_dir):
            resume_from_checkpoint = find_complete_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is not None:
                _report(active, f"Trainer.train(resume_from_checkpoint={resume_from_checkpoint!r})")
        return original(self, resume_from_checkpoint, *args, **kwargs)

    module.Trainer.train = train


def find_complete_checkpoint(folder: str) -> str | None:
    """Return the newest complete checkpoint of a Trainer; None if there is none.

    `get_last_checkpoint` of transformers also returns a folder in which the Trainer was killed before its last file.
    """
    complete: dict[int, str] = {}
    for state in Path(folder).glob("checkpoint-*/trainer_state.json"):
        with suppress(ValueError, OSError):
            json.loads(state.read_bytes())
            complete[int(state.parent.name.removeprefix("checkpoint-"))] = str(state.parent)
    return complete[max(complete)] if complete else None


_BEFORE_CHECKPOINT = 4
"""Positional arguments of Lightning's `fit` before `ckpt_path`."""


def _lightning(active: ActiveRank, module: ModuleType) -> None:
    """https://lightning.ai/docs/pytorch/stable/common/trainer.html: `Trainer.fit(ckpt_path=…)`.

    Each training gets the newest checkpoint that the same call of `fit` in the script saved. If no call of a rank saved
    one, it gets "last", which its own callbacks may have saved.
    """
    original: Callable[..., Any] = module.Trainer.fit
    calls = itertools.count(1)

    @functools.wraps(original)
    def fit(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        call = next(calls)
        if len(args) < _BEFORE_CHECKPOINT and kwargs.get("ckpt_path") is None:
            saved = find_lightning_checkpoints(Path(folder) for folder in active.context.spec.outputs)
            chosen = saved.get(call) if saved else "last"
            kwargs["ckpt_path"] = chosen
            if chosen is not None:
                _report(active, f"Trainer.fit(ckpt_path={chosen!r}){'' if saved else ', if there is one'}")
        return original(self, model, *args, **kwargs)

    module.Trainer.fit = fit


def find_lightning_checkpoints(folders: Iterable[Path]) -> dict[int, str]:
    """Return the checkpoint of the highest step that each call of `fit` saved in a rank.

    The outputs may have others: of a pretrained model, of another stage or fold.
    """
    newest = dict[int, tuple[int, bool, str]]()
    for path in (path for folder in folders for path in folder.glob("**/*.ckpt")):
        with suppress(Exception):  # Whatever cannot be read is no checkpoint to continue from.
            # A folder of parts has a file for all that is no tensor. Lightning loads it too. Tensors stay on the disk.
            file = path / "meta.pt" if path.is_dir() else path
            stored = torch.load(file, map_location="cpu", mmap=True, weights_only=False)
            if (call := lightning_state.saved_by(stored)) is not None:
                found = (int(stored["global_step"]), path.name.startswith("last"), str(path))
                newest[call] = max(newest.get(call, found), found)
    return {call: path for call, (_, _, path) in newest.items()}


def _report(active: ActiveRank, call: str) -> None:
    if active.rank == 0:
        active.notice("resume", f"the framework continues from its newest checkpoint: {call}")
