"""Reasons of verdicts, and parts of runs that were not compared, as records. `m5ws.wording` has the sentences.

A reason has only the evidence that no other field of its verdict has.
"""

from typing import Literal

from m5ws.records.base import Count, Record, RunId
from m5ws.records.failure import EndReason
from m5ws.records.run import Segment

GapKind = Literal[
    "missing steps", "no end", "observation failed", "attempt without place", "script end unknown",
    "weights of one side", "more weights of one side", "other failure", "generators not restored", "lost steps",
    "states of the original", "checkpoints of the original", "steps before the segment", "steps before the fork",
    "no steps", "none recorded", "states between", "original ended", "no weights alive", "files not kept",
    "nothing run", "nothing resumed", "files outside", "hosts"
]  # fmt: skip


Side = Literal["original", "replay"]


class Gap(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a run that a comparison does not cover. Its `kind` determines the other fields.

    `ranks` and `steps` are lists as text (`1-4, 7`). `original` and `replayed` are the ends of both sides.
    """

    kind: GapKind
    ranks: str | None = None
    steps: str | None = None
    step: int | None = None
    number: int | None = None
    name: str | None = None
    digest: str | None = None
    side: Side | None = None
    original: EndReason | None = None
    replayed: EndReason | None = None


class Resume(Record, frozen=True, kw_only=True):
    """The last resume before a first difference, after `step`; None: from output files alone.

    `is_cause`: the difference is in the first steps after the resume, or a notice states that the resume was inexact.
    `notices` are the recorded messages about the resume.
    """

    step: int | None
    is_cause: bool
    notices: tuple[str, ...] = ()


class Differs(Record, tag="differs", frozen=True, kw_only=True):
    """The verdict's first difference, explained by a resume, by its changes, or by an edit of the original's ledger."""

    resume: Resume | None = None
    rewritten: str | None = None


class Equal(Record, tag="equal", frozen=True, kw_only=True):
    """All that was compared is equal: state, `steps`, and delivered results that decide, counted by kind.

    `doubt` is a gap because of which equal records do not prove an equal end.
    """

    weights: bool = False
    optimizer: bool = False
    steps: int = 0
    evidence: dict[str, int] = {}
    doubt: Gap | None = None


class Ended(Record, tag="ended", frozen=True, kw_only=True):
    """A run of which too little is known ended with `outcome`."""

    side: Literal["original", "replay", "training"]
    outcome: str
    reason: EndReason | None = None


class Unreadable(Record, tag="unreadable", frozen=True, kw_only=True):
    """A stored object of the original is missing, damaged or foreign. `problem` is the text of the error."""

    problem: str


class Interruption(Record, tag="interruption", frozen=True, kw_only=True):
    """A training was interrupted after a step, and `resumed` after another; None: the records do not prove which one.

    `differs`: it differed before. `missed`: it was not interrupted. Both exclude a resume.
    """

    after: int
    resumed: int | None = None
    differs: bool = False
    missed: bool = False


class Fact(Record, tag="fact", frozen=True, kw_only=True):
    """A reason without fields of its own. The verdict has changes, the recheck and the explanation."""

    kind: Literal[
        "records missing", "state not compared", "nothing in common", "nothing recorded", "environment", "reads",
        "recheck", "no recheck", "traces differ"
    ]  # fmt: skip


Reason = Differs | Equal | Ended | Unreadable | Interruption | Fact


class JointReason(Record, frozen=True, kw_only=True):
    """The reason of a joint outcome: one verdict (of `replay`, on `segment`), the whole run, or equal segments.

    `equal` has the equal segments of a run that ends with step `last`. A sample has `drawn` of its
    `of` segments, and would have shown one of `faults` faults with the probability `chance`.
    """

    kind: Literal["one verdict", "whole run", "all segments", "some segments", "no verdict"]
    replay: RunId | None = None
    segment: Segment | None = None
    equal: tuple[Segment, ...] = ()
    last: int | None = None
    drawn: Count | None = None
    of: Count | None = None
    faults: Count = 1
    chance: float = 0.0


class ResultsHint(Record, frozen=True, kw_only=True):
    """The patterns for `[run] results` that pair files with different names, or that judge less than everything."""

    purpose: Literal["pair", "narrow"]
    patterns: tuple[str, ...]
