"""Resume of a script whose framework saves checkpoints itself: Hugging Face's Trainer, and Lightning.

`m5ws run --resume` puts the output files back. A script that passes no checkpoint to the framework would start at
step 1. Here the framework's own method gets its newest checkpoint, as its documentation describes, if
`training_folders` is certain that it is of this training. A checkpoint, or `False`, that the script passes itself stays
as it is. The next steps are compared with earlier ones (`observation`).
"""

import functools
import glob
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from m5ws.training.compat import lightning
from m5ws.training.frameworks import after_import, lightning_state
from m5ws.training.frameworks.training_folders import Newest, TrainingFolders, escape
from m5ws.training.runtime.context import ActiveRank


def install(active: ActiveRank) -> None:
    """Let frameworks of a later attempt continue from their newest checkpoint, once the script imports them.

    The folders of the first attempt's trainings are recorded for the later ones.
    """
    if active.context.resume is not None:
        return
    folders = TrainingFolders(active)
    after_import.change("transformers.trainer", functools.partial(_trainer, folders))
    for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
        after_import.change(name, functools.partial(_lightning, folders))


def _trainer(folders: TrainingFolders, module: ModuleType) -> None:
    """https://huggingface.co/docs/transformers/main_classes/trainer: `Trainer.train(resume_from_checkpoint=…)`.

    The trials of a search for settings save in folders of their own.
    """
    original: Callable[..., Any] = module.Trainer.train

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self.args.save_strategy != "no" and getattr(self, "hp_search_backend", None) is None:
            folder = self.args.output_dir
            given = folders.begin(
                [escape(folder)],
                lambda: find_complete_checkpoint(folder),
                "Trainer.train",
                "resume_from_checkpoint",
                is_passed=resume_from_checkpoint is not None,
            )
            if given is not None:
                result = original(self, given, *args, **kwargs)
                if given.endswith(f"checkpoint-{self.state.global_step}"):
                    # The Trainer restores generators in a step, and there was none left.
                    self._load_rng_state(given)
                return result
        return original(self, resume_from_checkpoint, *args, **kwargs)

    module.Trainer.train = train


def find_complete_checkpoint(folder: str) -> Newest | None:
    """Return the newest complete checkpoint of a Trainer; None if there is none.

    `get_last_checkpoint` of transformers also returns a folder in which the Trainer was killed before its last file.
    """
    complete: dict[int, str] = {}
    for state in Path(folder).glob("checkpoint-*/trainer_state.json"):
        with suppress(ValueError, OSError):
            json.loads(state.read_bytes())
            complete[int(state.parent.name.removeprefix("checkpoint-"))] = str(state.parent)
    if not complete:
        return None
    newest = complete[max(complete)]
    # The Trainer saves them together, and neither with `save_only_model`.
    has_generators = any(Path(newest).glob("rng_state*.pth"))
    return Newest(newest, lacks=None if has_generators else "state of the optimizer, schedule and generators")


_BEFORE_CHECKPOINT = 4
"""Positional arguments of Lightning's `fit` before `ckpt_path`."""
_VERSION = re.compile(r"(?<=/)version_[0-9]+(?=/|$)")
"""The folder of a logger, which takes a new number in each attempt."""


def _lightning(folders: TrainingFolders, module: ModuleType) -> None:
    """https://lightning.ai/docs/pytorch/stable/common/trainer.html: `Trainer.fit(ckpt_path=…)`."""
    original: Callable[..., Any] = module.Trainer.fit

    @functools.wraps(original)
    def fit(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if patterns := _lightning_folders(self):
            is_set = lightning.has_checkpoint(self)
            given = folders.begin(
                patterns,
                lambda: find_lightning_checkpoint(patterns),
                "Trainer.fit",
                "ckpt_path",
                is_passed=len(args) >= _BEFORE_CHECKPOINT or kwargs.get("ckpt_path") is not None or is_set,
            )
            if given is not None:
                kwargs["ckpt_path"] = given
        return original(self, model, *args, **kwargs)

    module.Trainer.fit = fit


def _lightning_folders(trainer: Any) -> list[str]:
    """Return the patterns of the folders in which the callbacks of a Trainer save; none for a trial run.

    A finder of `Tuner` ends `fit` before the training, and a `fast_dev_run` saves nothing.
    """
    if trainer.fast_dev_run or lightning.is_trial(trainer):
        return []
    saving = [callback for callback in trainer.checkpoint_callbacks if hasattr(callback, "dirpath")]
    named = {
        escape(callback.dirpath) if callback.dirpath is not None else _default_folder(trainer) for callback in saving
    }
    return sorted(_VERSION.sub("version_*", pattern) for pattern in named)


def _default_folder(trainer: Any) -> str:
    """Return the pattern of the folder of a `ModelCheckpoint` without one, as Lightning's `__resolve_ckpt_dir`."""
    if not trainer.loggers:
        return escape(os.path.join(trainer.default_root_dir, "checkpoints"))
    logger = trainer.loggers[0]
    root = logger.save_dir if logger.save_dir is not None else trainer.default_root_dir
    # Reading `version` would choose the number. Loggers of a service have none, and a random name instead.
    version = vars(logger).get("_version", "*")
    name = "*" if version == "*" else glob.escape(version) if isinstance(version, str) else "version_*"
    return os.path.join(escape(os.path.join(root, str(logger.name))), name, "checkpoints")


def find_lightning_checkpoint(patterns: Iterable[str]) -> Newest | None:
    """Return the checkpoint of the highest step that ranks of earlier attempts saved in folders; None without one.

    They may have others, such as that of a pretrained model.
    """
    checkpoints, calls = list[tuple[int, bool, str]](), set[int]()
    for path in (Path(path) for pattern in patterns for path in glob.glob(f"{pattern}/*.ckpt")):
        with suppress(Exception):  # Whatever cannot be read is no checkpoint to continue from.
            # A folder of parts has a file for all that is no tensor. Lightning loads it too. Tensors stay on the disk.
            file = path / "meta.pt" if path.is_dir() else path
            stored = torch.load(file, map_location="cpu", mmap=True, weights_only=False)
            if (call := lightning_state.earlier_call(stored)) is not None:
                checkpoints.append((int(stored["global_step"]), path.name.startswith("last"), str(path)))
                calls.add(call)
    return Newest(max(checkpoints)[-1], is_alone=calls == {1}) if checkpoints else None
