"""Records of a part of the logs of an attempt. No I/O here."""

from typing import Annotated

import msgspec

from m5ws.records.base import Count, KeyedRecord, RunId

LOGS = "logs/"
"""Prefix of the keys of all parts."""
PART_BYTES = 64 * 2**20
"""Upper bound of the size of a part's lines: the size of one PUT to the store."""


class StoredLines(msgspec.Struct, frozen=True, kw_only=True):
    """New lines of one log. `first` counts the lines of this log in the parts before."""

    first: Count
    lines: tuple[str, ...]


class LogPart(KeyedRecord, tag="log/2", frozen=True, kw_only=True):
    """New lines of the logs of a node since the part before.

    `logs` is a zlib stream of `size_bytes`: a map from the name of each log, a rank or a launcher, to its
    `StoredLines`. Secrets are masked, and control sequences are removed. `time_s`: seconds since the epoch.
    """

    run: RunId
    attempt: Count
    node: Count
    time_s: float
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=PART_BYTES)]
    logs: bytes
