"""The checkpoint engines that a DeepSpeed engine is lent: one takes what it saves, one gives what it loads.

Neither does I/O or raises inside DeepSpeed's own collectives, where the other ranks would wait for ever: what is
taken is written, and what is given was read, outside. https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html
"""

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from m5ws.training.compat import engine as internals
from m5ws.training.state.plain_state import RestoreError

TAG = "m5ws"


class Lent:
    """What DeepSpeed asks of any checkpoint engine; the question of who writes is answered as by the engine's own."""

    def __init__(self, own: Any, files: dict[str, dict[str, Any]]) -> None:
        self.name = "m5ws"
        self.files = files
        self._own = own

    def create(self, info: Any) -> None:
        pass

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        self.files[os.path.basename(path)] = state_dict

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        return self.files[os.path.basename(path)]

    def commit(self, info: Any) -> bool:
        return True

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return bool(self._own.is_data_parallel_writer(dp_rank))

    def is_decoupled(self) -> bool:
        return False

    def preserves_storage_sharing(self) -> bool:
        return False


def take(engine: Any) -> dict[str, dict[str, Any]]:
    """Return what this rank would save, by file name; the tensors in it are live. Collective."""
    with _lent(engine, {}) as (lent, directory):
        engine.save_checkpoint(directory, tag=TAG, save_latest=False)
        return lent.files


def give(engine: Any, files: dict[str, dict[str, Any]], names: Collection[str]) -> None:
    """Have the engine load `files`; `names` are all that the checkpoint has. Collective. Raises RestoreError."""
    with _lent(engine, files) as (_, directory):
        folder = Path(directory) / TAG
        folder.mkdir()
        for name in names:
            # DeepSpeed globs for files and asks whether they exist before it asks its checkpoint engine.
            (folder / name).touch()
        path, _ = engine.load_checkpoint(directory, tag=TAG)
    if path is None:
        raise RestoreError("DeepSpeed did not find its state in the checkpoint")


def wanted(engine: Any) -> list[str]:
    """Return the files that this rank's engine asks for when it loads."""
    return internals.file_names(engine, TAG)


@contextmanager
def _lent(engine: Any, files: dict[str, dict[str, Any]]) -> Iterator[tuple[Lent, str]]:
    lent = Lent(engine.checkpoint_engine, files)
    with internals.checkpoint_engine(engine, lent), tempfile.TemporaryDirectory(prefix="m5ws-deepspeed-") as directory:
        yield lent, directory
