"""Why a replay differs: the place where two runs of the same steps part, and its cause. No I/O here."""

from typing import Literal

from m5ws.records.base import Record, RunId

Phase = Literal[
    "state", "random numbers", "batch", "forward", "loss", "backward", "gradient", "optimizer", "update", "operations"
]
"""Where in a step it is: `state` before it, a parameter's `gradient` when it is whole, what the `optimizer` is
given, the `update` of the state. `operations`: others ran, so that their results cannot be compared."""

CauseKind = Literal[
    "dropout RNG",
    "random numbers",
    "module setting",
    "optimizer setting",
    "data order",
    "changed data",
    "nondeterministic kernel",
    "thread count",
    "vector capability",
    "reduction order, world size",
    "library version",
    "seed",
    "changed code",
    "changed config",
    "changed input",
    "unknown",
]


class Place(Record, frozen=True, kw_only=True):
    """The first thing that differs in a step that two runs did, after all before it was equal.

    `module` is a path in the model, `what` its class and settings, `op` an operation, `quantity` what of it differs,
    with both values; `alone`: it was made of what is equal. `ranks` are those on which something
    differs in that step. `words` says all this for people.
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
    op: str | None = None
    tensor: str | None = None
    alone: bool = False
    ranks: tuple[int, ...] = ()


class Cause(Record, frozen=True, kw_only=True):
    """A cause from the known ones. It is `certain` only where the evidence leaves no other."""

    kind: CauseKind
    certain: bool = False
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "unknown":
            return self.kind
        return f"{self.kind} ({'certain' if self.certain else 'possible'})"


class Side(Record, frozen=True, kw_only=True):
    """One replay of the steps from `first` to `last`, looked into.

    `original`: under the original's recorded conditions; `replay`: as the replay that diverged; `again`: that once
    more.
    `agrees`: whether it showed what that side had shown before; `problem` is what kept it from being of use.
    """

    side: Literal["original", "replay", "again"]
    replay: RunId | None = None
    agrees: bool = False
    problem: str | None = None


class Explanation(Record, frozen=True, kw_only=True):
    """What replaying the steps from `first` to `last` with a look inside has shown.

    `between` is what was held against each other: the original's own ledger, where it could not be replayed. `repeats`:
    whether the two replays of one side are equal in all that was looked at, None if that is not known. `causes` has
    the likeliest first; it is never empty. `limits` is what could not be looked at.
    """

    first: int
    last: int
    sides: tuple[Side, ...]
    between: Literal["original and replay", "two replays", "record and replay"] | None = None
    repeats: bool | None = None
    place: Place | None = None
    causes: tuple[Cause, ...] = (Cause(kind="unknown"),)
    limits: tuple[str, ...] = ()

    @property
    def replays(self) -> tuple[str, ...]:
        """The runs that it rests on."""
        return tuple(side.replay for side in self.sides if side.replay is not None)
