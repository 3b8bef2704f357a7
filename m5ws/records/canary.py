"""Record of a canary: the first steps of a snapshot's job on one machine. No I/O here."""

from typing import Literal

from m5ws.records.base import Count, Digest, KeyedRecord, RunId

CanaryOutcome = Literal["ok", "diverged", "failed"]


class Canary(KeyedRecord, tag="canary/1", frozen=True, kw_only=True):
    """Result of `steps` steps of a snapshot's job on `host`, as run `run` (None: the run did not begin).

    `kind` is a digest of the launch, the number of steps, and `facts` of the hardware. `digest` covers all compared
    values of the steps. The first `ok` record of a kind is the reference: a later digest that differs is `diverged`.
    `detail` is for people: the first difference, or the failure.
    """

    snapshot: Digest
    kind: str
    facts: dict[str, str | None]
    outcome: CanaryOutcome
    host: str
    steps: Count
    run: RunId | None = None
    digest: Digest | None = None
    detail: str = ""
    created_s: float
