"""The context record of an attempt's ranks, for tests that replace the supervisor."""

from pathlib import Path

import msgspec

from m5ws.records import codec
from m5ws.records.environment import Determinism
from m5ws.records.launch import ADMITTED, Admission, Context, LocalInstall
from m5ws.records.run import LaunchSpec


def orders(directory: Path, *, local_installs: tuple[LocalInstall, ...] = (), **fields: object) -> Context:
    """Return the context of a first attempt with its folders in `directory`, and with the given `fields`.

    Its ranks are admitted.
    """
    spools = directory / "spool"
    spools.mkdir(parents=True, exist_ok=True)
    (spools / ADMITTED).write_bytes(codec.encode(Admission(local_installs=local_installs)))
    context = Context(
        store=str(directory / "store"),
        run="0" * 12,
        snapshot="0" * 64,
        attempt=1,
        spec=LaunchSpec(command=("x.py",)),
        determinism=Determinism(),
        work_dir=str(directory / "work"),
        spool_dir=str(spools),
        log_dir=str(directory / "log"),
        output_dir=str(directory / "out"),
        author_dir=str(directory / "author"),
    )
    return msgspec.structs.replace(context, **fields)
