"""The checkpoint engines that m5ws sets in a DeepSpeed engine: one captures the saved files, one supplies the loaded
files.

Neither does I/O or raises inside DeepSpeed's own collectives, where the other ranks would wait for ever. Captured files
are written, and supplied files are read, outside. https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html
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


class BorrowedCheckpointEngine:
    """DeepSpeed's interface of a checkpoint engine. The engine's own one decides the writers."""

    def __init__(self, own: Any, files: dict[str, dict[str, Any]]) -> None:
        self.name = "m5ws"
        self.files = files
        self._own = own

    def create(self, info: Any) -> None:
        pass

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        self.files[os.path.basename(path)] = internals.with_sorted_names(state_dict)

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


def capture_files(engine: Any) -> dict[str, dict[str, Any]]:
    """Return the files that this rank saves, by name; their tensors are live. Collective."""
    with _lent(engine, {}) as (lent, directory):
        engine.save_checkpoint(directory, tag=TAG, save_latest=False)
        return lent.files


def supply_files(engine: Any, files: dict[str, dict[str, Any]], names: Collection[str]) -> None:
    """Let the engine load `files`; `names` are all files of the checkpoint. Collective. Raises RestoreError."""
    with _lent(engine, files) as (_, directory):
        folder = Path(directory) / TAG
        folder.mkdir()
        for name in names:
            # DeepSpeed globs for files and checks that they exist before it calls its checkpoint engine.
            (folder / name).touch()
        path, _ = engine.load_checkpoint(directory, tag=TAG)
    if path is None:
        raise RestoreError("DeepSpeed did not find its state in the checkpoint")


def required_files(engine: Any) -> list[str]:
    """Return the names of the files that this rank's engine loads."""
    return internals.file_names(engine, TAG)


@contextmanager
def _lent(engine: Any, files: dict[str, dict[str, Any]]) -> Iterator[tuple[BorrowedCheckpointEngine, str]]:
    lent = BorrowedCheckpointEngine(engine.checkpoint_engine, files)
    with internals.checkpoint_engine(engine, lent), tempfile.TemporaryDirectory(prefix="m5ws-deepspeed-") as directory:
        yield lent, directory
