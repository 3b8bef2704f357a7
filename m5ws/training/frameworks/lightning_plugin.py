"""Lightning's checkpoints in the store as soon as they are saved, by a `CheckpointIO`."""

import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from m5ws.training.runtime import context
from m5ws.training.runtime.context import ActiveRank

_PACKAGES = ("lightning.fabric", "lightning_fabric")
_FORMS = (os.path.abspath, os.path.realpath)
_reported: list[str] = []
"""The first checkpoint that is not stored."""


def lightning_checkpoint_io() -> Any:
    """Return a `CheckpointIO` of Lightning that stores each checkpoint when it is saved: `Trainer(plugins=[…])`.

    It saves as Lightning's `TorchCheckpointIO`. In a run of a script without a session, m5ws then copies the output
    files to the store, while the training continues. Otherwise it does nothing more. Fabric takes it too, and
    `AsyncCheckpointIO` may wrap it.
    Raises ImportError without Lightning.
    https://lightning.ai/docs/pytorch/stable/common/checkpointing_expert.html
    """
    installed = [name for name in _PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is not None]
    base, *others = [importlib.import_module(f"{name}.plugins.io") for name in installed or _PACKAGES[:1]]

    class StoringCheckpointIO(base.TorchCheckpointIO):  # type: ignore[misc,name-defined]  # an installed package's
        """As the class of Lightning, and asks for a copy after each save."""

        def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
            return lightning_checkpoint_io, ()

        def save_checkpoint(self, checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> None:
            super().save_checkpoint(checkpoint, path, *args, **kwargs)
            active = context.active()
            if active is not None:
                _store(active, os.fspath(path))

    for other in others:
        # The two packages have classes of their own, and the script may use either.
        other.CheckpointIO.register(StoringCheckpointIO)
    return StoringCheckpointIO()


def _store(active: ActiveRank, path: str) -> None:
    """Ask for a copy of a checkpoint that was saved; report once if m5ws does not keep files at its path."""
    folders = [os.path.join(active.context.work_dir, output) for output in active.context.spec.outputs]
    if any(Path(form(path)).is_relative_to(form(folder)) for folder in folders for form in _FORMS):
        active.request_copy()
    elif not _reported:
        _reported.append(path)
        active.notice("limit", f"the checkpoint {path} is not stored: it is in no folder of [run] outputs in m5ws.toml")
