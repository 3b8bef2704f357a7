"""Lightning's checkpoints in the store as soon as they are saved, by a `CheckpointIO`."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from m5ws.training.runtime import context

_PACKAGES = ("lightning.fabric", "lightning_fabric")


def lightning_checkpoint_io() -> Any:
    """Return a `CheckpointIO` of Lightning that stores each checkpoint when it is saved: `Trainer(plugins=[…])`.

    It saves as Lightning's `TorchCheckpointIO`. In a run, m5ws then copies the output files to the store, while the
    training continues. Outside a run it does nothing more. Fabric takes it too, and `AsyncCheckpointIO` may wrap it.
    Raises ImportError without Lightning.
    https://lightning.ai/docs/pytorch/stable/common/checkpointing_expert.html
    """
    installed = [name for name in _PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is not None]
    base, *others = [importlib.import_module(f"{name}.plugins.io") for name in installed or _PACKAGES[:1]]

    class StoringCheckpointIO(base.TorchCheckpointIO):  # type: ignore[misc,name-defined]  # an installed package's
        """As the class of Lightning, and asks for a copy after each save."""

        def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
            return lightning_checkpoint_io, ()

        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            super().save_checkpoint(*args, **kwargs)
            active = context.active()
            if active is not None:
                active.request_copy()

    for other in others:
        # The two packages have classes of their own, and the script may use either.
        other.CheckpointIO.register(StoringCheckpointIO)
    return StoringCheckpointIO()
