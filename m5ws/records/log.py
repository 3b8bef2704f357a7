"""Record of a part of the logs of an attempt. No I/O here."""

from m5ws.records.base import Count, KeyedRecord, RunId

LOGS = "logs/"
"""Prefix of the keys of all parts."""


class LogPart(KeyedRecord, tag="log/1", frozen=True, kw_only=True):
    """New lines of the logs of a node since the part before, by the name of the log: a rank, or `launcher`.

    Secrets are masked, and control sequences are removed. `time_s`: seconds since the epoch.
    """

    run: RunId
    attempt: Count
    node: Count
    time_s: float
    lines: dict[str, tuple[str, ...]]
