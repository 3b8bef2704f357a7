"""Explanation of a divergence: the place where two runs of the same steps first differ, and the cause. No I/O here."""

from typing import Literal

from m5ws.records.base import Record, RunId

Phase = Literal[
    "state", "random numbers", "batch", "forward", "loss", "backward", "gradient", "optimizer", "update", "operations"
]
"""Phase of a step: `state` before it, a parameter's `gradient` when it is complete, the inputs of the `optimizer`, the
`update` of the state. `operations`: different operations ran, so their results cannot be compared."""

CauseKind = Literal[
    "random numbers",
    "module setting",
    "optimizer setting",
    "data order",
    "nondeterministic kernel",
    "recorded change",
    "unknown",
]


class FirstDifference(Record, frozen=True, kw_only=True):
    """The first difference in a step of two runs; everything before it is equal.

    `module` is a path in the model, `what` its class and settings, `changed` the class and settings of the second run
    if they differ, `op` an operation. `quantity` differs, with both values. `alone`: all of its inputs are equal.
    `ranks` are the ranks with a difference in that step. `words` is a description of the place for people.
    """

    step: int
    rank: int
    phase: Phase
    quantity: str
    original: str | None
    replayed: str | None
    words: str
    module: str | None = None
    what: str | None = None
    changed: str | None = None
    op: str | None = None
    tensor: str | None = None
    alone: bool = False
    ranks: tuple[int, ...] = ()


class Cause(Record, frozen=True, kw_only=True):
    """A known cause. It is `certain` only if the evidence excludes all other causes."""

    kind: CauseKind
    certain: bool = False
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "unknown":
            return self.kind
        return f"{self.kind} ({'certain' if self.certain else 'possible'})"


class TracedReplay(Record, frozen=True, kw_only=True):
    """One traced replay of the steps from `first` to `last`.

    `original`: under the original's recorded conditions; `replay`: as the replay that diverged; `again`: a second
    replay like it. `agrees`: it has the same values as that side had before. `problem` is the reason why it could not
    be used.
    """

    side: Literal["original", "replay", "again"]
    replay: RunId | None = None
    agrees: bool = False
    problem: str | None = None


class Explanation(Record, frozen=True, kw_only=True):
    """Result of traced replays of the steps from `first` to `last`.

    `between` names the two sides that were compared; `record` is the original's own ledger, if it could not be
    replayed. `repeats`: True if the two replays of one side have equal traces, None if unknown. `causes` has the
    certain causes first, and is never empty. `limits` lists things that could not be traced.
    """

    first: int
    last: int
    sides: tuple[TracedReplay, ...]
    between: Literal["original and replay", "two replays", "record and replay"] | None = None
    repeats: bool | None = None
    place: FirstDifference | None = None
    causes: tuple[Cause, ...] = (Cause(kind="unknown"),)
    limits: tuple[str, ...] = ()

    @property
    def replays(self) -> tuple[str, ...]:
        """The runs that the explanation rests on."""
        return tuple(side.replay for side in self.sides if side.replay is not None)
