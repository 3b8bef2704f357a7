"""Record of an incident: the failed end of an attempt, with its cause. No I/O here."""

from m5ws.records.base import Count, Digest, KeyedRecord, RunId
from m5ws.records.cause import Cause
from m5ws.records.failure import EndReason

INCIDENTS = "incidents/"
"""Prefix of the keys of all incidents."""


class Incident(KeyedRecord, tag="incident/1", frozen=True, kw_only=True):
    """The failed end of an attempt after `step`, at `time_s` of the store's clock.

    `cause` is None if it is unknown, and `host` is the machine of its rank, if known. `environment` is the digest of
    the `Observed` of that machine. `memory` has sentences about earlier incidents of the same kind in the store.
    """

    run: RunId
    attempt: Count
    time_s: float
    outcome: str
    step: Count
    reason: EndReason | None = None
    cause: Cause | None = None
    host: str | None = None
    environment: Digest | None = None
    memory: tuple[str, ...] = ()
