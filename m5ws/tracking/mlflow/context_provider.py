"""MLflow's run-context plug-in: a run that a training script starts itself is tagged with its m5ws run.

MLflow imports it in every process that uses MLflow, m5ws or not: so it imports next to nothing, never
raises, and says nothing where M5WS_CONTEXT names no context.
"""

import os
from pathlib import Path


class M5Context:
    """A `RunContextProvider`, by shape: MLflow asks for no base class, and importing it costs a second."""

    def in_context(self) -> bool:
        """Return whether this process belongs to an m5ws run."""
        return bool(os.environ.get("M5WS_CONTEXT"))

    def tags(self) -> dict[str, str]:
        """Return the tags that tie an MLflow run to its m5ws run, attempt, rank and snapshot."""
        from m5ws.errors import M5Error
        from m5ws.records import codec
        from m5ws.records.launch import Context

        try:
            data = Path(os.environ["M5WS_CONTEXT"]).read_bytes()
            context = codec.decode(data, Context, "context")
        except (OSError, M5Error):
            return {}
        return {
            "m5ws.run_id": context.run,
            "m5ws.attempt": str(context.attempt),
            "m5ws.rank": os.environ.get("RANK", "0"),
            "m5ws.snapshot_id": context.snapshot,
        }
