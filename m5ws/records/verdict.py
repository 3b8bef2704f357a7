"""What comparing finds: how inputs differ, where two runs part, and what `reproduce` says of a run. No I/O here."""

from typing import Literal

import msgspec

from m5ws.records.base import Placed, Record, RunId, Sealed
from m5ws.records.explanation import Explanation
from m5ws.records.run import Segment


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


Outcome = Literal["reproduced", "sampled", "consistent", "diverged", "nondeterministic", "not comparable"]
"""`sampled`: the segment that was replayed is equal, given the checkpoint it started from. `consistent`: not equal, and
all that was recorded lies within the tolerance that was asked for."""

EXIT_CODES: dict[Outcome, int] = {
    "reproduced": 0,
    "sampled": 0,
    "consistent": 0,
    "diverged": 1,
    "nondeterministic": 1,
    "not comparable": 2,
}


class Recheck(Record, frozen=True, kw_only=True):
    """A second replay of a run whose first one diverged, from the same start up to the step where that differs.

    `repeats`: whether the two replays agree in all that both recorded; None if it could not be told, for `reason`.
    `first` is where they part, with the first replay's value as the original. `as_original`: whether the second is
    equal to the original where the first is not. `last` is the step it was to end after; None: with the script.
    `replay` is None where it could not even be begun. Of a segment whose two replays agree, `start` is the replay from
    the run's start up to that step, and `start_equal` whether it is equal to the original: the restore was not exact.
    """

    replay: RunId | None = None
    last: int | None = None
    repeats: bool | None = None
    as_original: bool = False
    first: Divergence | None = None
    reason: str | None = None
    start: RunId | None = None
    start_equal: bool | None = None


class Course(Record, frozen=True, kw_only=True):
    """How a divergence goes on: of `compared` steps `differ` do, the last of them is `last`; `by` counts by kind.

    A step differs if one of its quantities does on some rank, or state or a checkpoint after it. What is before the
    first step counts for none.
    """

    compared: int
    differ: int
    last: int
    by: dict[str, int]

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} in {steps}" for kind, steps in self.by.items())
        until = f", the last of them step {self.last}" if self.differ else ""
        return f"{self.differ} of {self.compared} steps differ{until}" + (f" ({kinds})" if kinds else "")


class Apart(Record, frozen=True, kw_only=True):
    """The recorded value that lies furthest from the original's: `relative` is |a - b| / max(|a|, |b|).

    `values` were compared.
    """

    relative: float
    quantity: str
    step: int
    rank: int
    values: int


Hardware = Literal["the same machine", "the same kind of hardware", "other hardware"]


class Expectation(Record, frozen=True, kw_only=True):
    """What a determinism level lets one expect of a replay, as far as the hardware goes: `equal` bits, or not.

    `hardware` is what the replay has, beside the original's first attempt; `why` says both in words.
    """

    level: Literal["portable", "strict", "warn", "off"]
    hardware: Hardware
    equal: bool
    why: str


class Verdict(Sealed, tag="verdict/1", frozen=True, kw_only=True):
    """What `reproduce` found. `compared` counts equal quantities by kind; `not_compared` says what was not and why;
    `outputs` in which output files differences were found that do not decide, and by which rules.

    `expected` is what could be expected before it began. `recheck` is the second replay of one that diverged,
    `course` is known of a replay that went on all the same, `apart` of one that was held against a tolerance, and
    `explanation` of one that was looked into.
    """

    run: str
    replay: str
    outcome: Outcome
    segment: Segment | None = None
    compared: dict[str, int] = msgspec.field(default_factory=dict)
    not_compared: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    first: Divergence | None = None
    changes: tuple[Change, ...] = ()
    reason: str | None = None
    expected: Expectation | None = None
    recheck: Recheck | None = None
    course: Course | None = None
    apart: Apart | None = None
    explanation: Explanation | None = None
    created_s: float = 0.0

    @property
    def replays(self) -> tuple[str, ...]:
        """The runs that the verdict rests on: the replay, the second one and those that explain, if there are any."""
        again = (self.recheck.replay, self.recheck.start) if self.recheck is not None else ()
        explaining = self.explanation.replays if self.explanation is not None else ()
        return (self.replay, *(one for one in again if one is not None), *explaining)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


class JointVerdict(Placed, tag="joint-verdict/1", frozen=True, kw_only=True):
    """What replays of segments say together of a run that has `of` segments: of which steps what is known.

    `verified` are equal, each given its checkpoint; `differ` are not, or do not repeat themselves; `open` were not
    replayed, or could not be compared. `replays` are the runs whose verdicts these are, in order of steps.
    """

    run: RunId
    outcome: Outcome
    reason: str
    of: int
    verified: tuple[Segment, ...] = ()
    differ: tuple[Segment, ...] = ()
    open: tuple[Segment, ...] = ()
    replays: tuple[RunId, ...] = ()
    created_s: float = 0.0

    @property
    def parts(self) -> dict[str, str]:
        """What is verified, what is not and what differs, in words; what is empty is left out."""
        named = {"verified": self.verified, "differs": self.differ, "not verified": self.open}
        return {name: ", ".join(map(str, parts)) for name, parts in named.items() if parts}


class Elements(msgspec.Struct, frozen=True, kw_only=True):
    """How elements differ. Numbers are of differing elements alone; `max_relative` is to the larger of both.

    `zero_signs` differ in the sign of a zero only, `nans` are NaN in both with other bits, `nan_in_one` is NaN in one.
    The greatest differences are `float.hex()`, and None where all that differ are of these three kinds.
    """

    compared: int
    differing: int = 0
    first: int | None = None
    first_a: str | None = None
    first_b: str | None = None
    max_absolute: str | None = None
    max_relative: str | None = None
    zero_signs: int = 0
    nans: int = 0
    nan_in_one: int = 0

    @property
    def same_values(self) -> bool:
        """Whether every value is the same: only signs of zeros and the bits of NaNs are not."""
        return self.differing == self.zero_signs + self.nans

    def __add__(self, later: "Elements") -> "Elements":
        """Return both together; `later` is of elements after these."""
        early = self if self.first is not None else later
        return Elements(
            compared=self.compared + later.compared,
            differing=self.differing + later.differing,
            first=early.first,
            first_a=early.first_a,
            first_b=early.first_b,
            max_absolute=_larger(self.max_absolute, later.max_absolute),
            max_relative=_larger(self.max_relative, later.max_relative),
            zero_signs=self.zero_signs + later.zero_signs,
            nans=self.nans + later.nans,
            nan_in_one=self.nan_in_one + later.nan_in_one,
        )


def _larger(a: str | None, b: str | None) -> str | None:
    return max((value for value in (a, b) if value is not None), key=float.fromhex, default=None)
