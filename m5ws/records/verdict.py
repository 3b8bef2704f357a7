"""Results of comparisons: differences of inputs, the divergence of two runs, and verdicts. No I/O here."""

from typing import Literal

import msgspec

from m5ws.records.base import KeyedRecord, Record, RunId, SealedRecord
from m5ws.records.explanation import Explanation
from m5ws.records.reasons import Ended, Gap, JointReason, Reason, ResultsHint
from m5ws.records.run import Segment


class Change(Record, frozen=True, kw_only=True):
    """One difference between two sets of inputs or environments.

    `part` is code, config, tokenizer, data, declared, determinism, argument, launch, environment, or read (a file that
    no snapshot contains). `rating` is the effect on bits. `detail` is for people (for code, a unified diff).
    """

    part: str
    name: str
    old: str | None
    new: str | None
    rating: Literal["cannot", "can", "does"] = "can"
    detail: str | None = None


QuantityKind = Literal[
    "value", "steps", "generator", "tensor", "checkpoint", "final tensor", "file", "artifact", "parameter", "metric",
    "result"
]  # fmt: skip
"""`value`: of a step, such as the loss or the batch. `steps`: their number. `final tensor`: at the script's end."""
STATE = frozenset(("generator", "tensor", "checkpoint", "final tensor"))
"""Kinds of quantities in the state after a step."""
RESULTS = frozenset(("file", "artifact", "parameter", "metric", "result"))
"""Kinds of quantities that are delivered results, which belong to no step and no rank."""


class Divergence(Record, frozen=True, kw_only=True):
    """The first difference, with its values as exact text.

    `quantity` is the name within its `kind`, `place` the key, line or tensor in a delivered result.
    `tensor` is the first by name of `tensors_differ` tensors whose fingerprints differ after `tensor_step`: the
    first step at or after `step` whose state was recorded. If the difference is in the state, and states just before
    were not recorded, `equal_after` is the last step before with a state that was compared, and is equal.
    `differing` names all quantities of steps and generators that differ at `step` on any rank, the generators first.
    """

    step: int
    rank: int
    kind: QuantityKind = "value"
    quantity: str
    place: str | None = None
    original: str | None
    replayed: str | None
    tensor: str | None = None
    tensor_step: int | None = None
    tensors_differ: int = 0
    equal_after: int | None = None
    differing: tuple[str, ...] = ()

    @property
    def is_state(self) -> bool:
        return self.kind in STATE

    @property
    def is_result(self) -> bool:
        return self.kind in RESULTS


ItemReason = Literal[
    "only the original has it", "only the replay has it", "both runs lack it", "bytes differ", "unreadable",
    "the original did not end by itself", "the replay did not end by itself",
    "the original could not store its output files", "the replay could not store its output files",
    "the replay ends earlier than the original"
]  # fmt: skip
"""`bytes differ`: and the file cannot be read as tensors."""


class ComparedItem(Record, frozen=True, kw_only=True):
    """An output file, an artifact, parameter or metric in MLflow, or a named result, with its one status.

    `judged`: the status decides. A judged item that differs makes a verdict *diverged*; an item that was not compared
    makes it at most *sampled*. `place` is the first differing key, line or tensor (`in_tensor`), with the values of
    both sides. `reason` is the reason of "not compared", and `problem` the text of an error. `replayed_as` is the name
    in the replay if a pattern of `[run] results` pairs two names.
    """

    kind: Literal["file", "artifact", "parameter", "metric", "result"]
    name: str
    status: Literal["equal", "differs", "not compared"]
    judged: bool = False
    place: str | None = None
    in_tensor: bool = False
    original: str | None = None
    replayed: str | None = None
    reason: ItemReason | None = None
    problem: str | None = None
    replayed_as: str | None = None


Outcome = Literal["reproduced", "sampled", "diverged", "nondeterministic", "not comparable"]
"""`sampled`: the replayed segment is equal, given the checkpoint that it started from."""

EXIT_CODES: dict[Outcome, int] = {
    "reproduced": 0,
    "sampled": 0,
    "diverged": 1,
    "nondeterministic": 1,
    "not comparable": 2,
}


class Recheck(Record, frozen=True, kw_only=True):
    """A second replay after the first replay diverged, from the same start up to the step that differs.

    `repeats`: True if the two replays agree in all that both recorded; None if unknown, because of an error (`problem`)
    or of its end (`ended`), or because it did not record the difference. `first` is their first difference, with the
    first replay's value as the original. `as_original`: the second is equal to the
    original where the first is not. `last` is the step to end after; None: with the script. `replay` is None if it
    could not be started. If two replays of a segment agree, `start` is a replay from the run's start up to that step.
    If that is equal to the original (`start_equal`), the restore was not exact. A replay that was interrupted and
    resumed has `start` alone, a replay without an interruption.
    """

    replay: RunId | None = None
    last: int | None = None
    repeats: bool | None = None
    as_original: bool = False
    first: Divergence | None = None
    problem: str | None = None
    ended: Ended | None = None
    start: RunId | None = None
    start_equal: bool | None = None


class Verdict(SealedRecord, tag="verdict/1", frozen=True, kw_only=True):
    """Result of `reproduce`. `compared` counts equal quantities by kind, `not_compared` lists gaps.

    `reasons` and the other fields are all evidence. `m5ws.wording` has the sentence.
    `observed`: the steps were observed in a script without a session, not recorded by one.
    `items` has each output file, artifact, parameter and metric of both runs, and `results` the patterns of `[run]
    results` by which they were judged; with `strict`, all output files were judged by their bytes. `hint` is the remedy
    if there is one.
    `recheck` is the second replay after a divergence, and `explanation` belongs to traced replays.
    """

    run: str
    replay: str
    outcome: Outcome
    segment: Segment | None = None
    compared: dict[str, int] = msgspec.field(default_factory=dict)
    not_compared: tuple[Gap, ...] = ()
    items: tuple[ComparedItem, ...] = ()
    results: tuple[str, ...] = ()
    strict: bool = False
    hint: ResultsHint | None = None
    first: Divergence | None = None
    changes: tuple[Change, ...] = ()
    observed: bool = False
    reasons: tuple[Reason, ...] = ()
    recheck: Recheck | None = None
    explanation: Explanation | None = None
    created_s: float = 0.0

    @property
    def replays(self) -> tuple[str, ...]:
        """The runs that the verdict rests on: the replay, the recheck's runs and the explanation's runs."""
        rechecks = (self.recheck.replay, self.recheck.start) if self.recheck is not None else ()
        traced = self.explanation.replays if self.explanation is not None else ()
        return (self.replay, *(run for run in rechecks if run is not None), *traced)

    @property
    def unequal(self) -> tuple[ComparedItem, ...]:
        """The items that differ or were not compared."""
        return tuple(item for item in self.items if item.status != "equal")

    @property
    def unsure(self) -> tuple[ComparedItem, ...]:
        """The judged items that could not be compared."""
        return tuple(item for item in self.items if item.judged and item.status == "not compared")

    @property
    def is_inexact(self) -> bool:
        """True if a resume or restore is proven to be the cause of a difference. The run itself is not in doubt."""
        return self.recheck is not None and self.recheck.start_equal is True

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


class JointVerdict(KeyedRecord, tag="joint-verdict/1", frozen=True, kw_only=True):
    """Verdict on a run with `of` segments, from the replays of its segments.

    `verified` segments are equal, each given its checkpoint. `differ` are not equal, or do not repeat themselves.
    `open` were not replayed, or could not be compared. `replays` are the runs with the verdicts, in order of steps.
    """

    run: RunId
    outcome: Outcome
    reason: JointReason
    of: int
    verified: tuple[Segment, ...] = ()
    differ: tuple[Segment, ...] = ()
    open: tuple[Segment, ...] = ()
    replays: tuple[RunId, ...] = ()
    created_s: float = 0.0

    @property
    def parts(self) -> dict[str, str]:
        """The verified, differing and open segments as text, without empty groups."""
        groups = {"verified": self.verified, "differs": self.differ, "not verified": self.open}
        return {name: ", ".join(map(str, segments)) for name, segments in groups.items() if segments}
