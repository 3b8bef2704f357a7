"""MLflow's run-context plug-in. It tags a run that a training script starts itself with its m5ws run.

MLflow makes the plug-in before it opens a database. So a script of a run waits here until the embedded database is
ready.

MLflow imports it in every process that uses MLflow, with or without m5ws. So it imports almost nothing, raises
nothing, and returns no tags without M5WS_CONTEXT.
"""

import os
from contextlib import suppress
from pathlib import Path


class M5Context:
    """A `RunContextProvider` without its base class: MLflow does not require it, and its import takes a second."""

    def __init__(self) -> None:
        if not self.in_context():
            return
        from m5ws.errors import M5Error
        from m5ws.tracking.mlflow import migrations

        uri, experiment = (os.environ.get(name, "") for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"))
        with suppress(M5Error, OSError):  # MLflow itself reports a database that it cannot use
            migrations.await_schema(uri, experiment)

    def in_context(self) -> bool:
        """Return True if this process belongs to an m5ws run."""
        return bool(os.environ.get("M5WS_CONTEXT"))

    def tags(self) -> dict[str, str]:
        """Return the tags that link an MLflow run to its m5ws run, attempt, rank and snapshot. Mark the attempt."""
        from m5ws.errors import M5Error
        from m5ws.records import codec
        from m5ws.records.launch import Context
        from m5ws.tracking.interface import LOGGED

        path = Path(os.environ["M5WS_CONTEXT"])
        try:
            context = codec.decode(path.read_bytes(), Context, "context")
            path.with_name(LOGGED).touch()
        except (OSError, M5Error):
            return {}
        return {
            "m5ws.run_id": context.run,
            "m5ws.attempt": str(context.attempt),
            "m5ws.rank": os.environ.get("RANK", "0"),
            "m5ws.snapshot_id": context.snapshot,
        }
