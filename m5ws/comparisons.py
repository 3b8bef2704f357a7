"""What comparing finds: how inputs differ, where two runs part, and what `reproduce` says of a run. No I/O here."""

from typing import Literal

import msgspec

from m5ws.records import Record, Sealed, Segment


class Change(Record, frozen=True, kw_only=True):
    """One difference between two sets of inputs or environments.

    `part` is code, config, tokenizer, data, declared, determinism, launch or environment. `rating` says what it
    can do to bits, `detail` is for people (a unified diff, for code).
    """

    part: str
    name: str
    old: str | None
    new: str | None
    rating: Literal["cannot", "can", "does"] = "can"
    detail: str | None = None


class Divergence(Record, frozen=True, kw_only=True):
    """The first difference, with its values as exact text.

    `tensor` is the first by name of `tensors_differ` tensors whose fingerprints differ after `tensor_step`: the
    first step at or after `step` whose state was recorded.
    """

    step: int
    rank: int
    quantity: str
    original: str | None
    replayed: str | None
    tensor: str | None = None
    tensor_step: int | None = None
    tensors_differ: int = 0


Outcome = Literal["reproduced", "sampled", "diverged", "nondeterministic", "not comparable"]
"""`sampled`: the segment that was replayed is equal, given the checkpoint it started from."""


class Verdict(Sealed, tag="verdict/1", frozen=True, kw_only=True):
    """What `reproduce` found. `compared` counts equal quantities by kind; `not_compared` says what was not and why."""

    run: str
    replay: str
    outcome: Outcome
    segment: Segment | None = None
    compared: dict[str, int] = msgspec.field(default_factory=dict)
    not_compared: tuple[str, ...] = ()
    first: Divergence | None = None
    changes: tuple[Change, ...] = ()
    reason: str | None = None
    created_s: float = 0.0

    @property
    def exit_code(self) -> int:
        return {"reproduced": 0, "sampled": 0, "diverged": 1, "nondeterministic": 1, "not comparable": 2}[self.outcome]
