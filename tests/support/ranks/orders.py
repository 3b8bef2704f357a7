"""The context record of an attempt's ranks, for tests that replace the supervisor."""

from pathlib import Path

import msgspec

from m5ws.records.environment import Determinism
from m5ws.records.launch import Context
from m5ws.records.run import LaunchSpec


def orders(directory: Path, **fields: object) -> Context:
    """Return the context of a first attempt with its folders in `directory`, and with the given `fields`."""
    context = Context(
        store=str(directory / "store"),
        run="0" * 12,
        snapshot="0" * 64,
        attempt=1,
        spec=LaunchSpec(command=("x.py",)),
        determinism=Determinism(),
        work_dir=str(directory / "work"),
        spool_dir=str(directory / "spool"),
        log_dir=str(directory / "log"),
        output_dir=str(directory / "out"),
        author_dir=str(directory / "author"),
    )
    return msgspec.structs.replace(context, **fields)
