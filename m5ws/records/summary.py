"""Record of the summary of an ended attempt. No I/O here."""

import msgspec

from m5ws.records.base import Count, KeyedRecord, RunId


class AttemptSummary(KeyedRecord, tag="summary/1", frozen=True, kw_only=True):
    """The events of an ended attempt by origin, as stored, without states and with only the last step of each rank.

    Derived from the ledger. `batches` is the length of the first node's chain that it covers.
    """

    run: RunId
    attempt: Count
    batches: Count
    events: dict[str, tuple[msgspec.Raw, ...]]
