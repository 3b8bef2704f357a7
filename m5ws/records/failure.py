"""Ends of ranks and attempts, as records. `m5ws.wording.failures` has the sentences."""

from typing import Literal

from m5ws.records.base import Count, Record


class Failure(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The failed end of a rank's script: an exception, a text given to `sys.exit`, a `signal`, or an exit `status`.

    `type` and `text` are of the exception, and `place` is its innermost frame, FILE:LINE. `worker` is the number of the
    data loader's worker that raised it.
    """

    type: str | None = None
    text: str = ""
    place: str | None = None
    worker: int | None = None
    signal: int | None = None
    status: int | None = None


class EndReason(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The reason of an attempt's end. Its `kind` determines the other fields.

    `dead` has the statuses of ranks without a recorded failure, by rank, negative for a signal. `failure` is the first
    recorded one, of `rank` (None: the only rank). `problem` is the text of an error. `place` is the line of the script,
    FILE:LINE, in which a `rank` on `host` is stuck; without a rank it is unknown which one is.
    """

    kind: Literal[
        "ranks failed", "status", "stopped", "superseded", "removed", "enough steps", "not launched",
        "fork not restored", "killed for a test", "supervisor killed", "unsaved", "inexact resume",
        "wrong network", "node lost", "cancelled", "outputs conflict", "stuck", "loss"
    ]  # fmt: skip
    dead: dict[str, int] = {}
    failure: Failure | None = None
    rank: int | None = None
    attempt: Count | None = None
    host: str | None = None
    signal: str | None = None
    status: int | None = None
    step: int | None = None
    problem: str | None = None
    place: str | None = None
