"""Comparison of a replay with its original while it grows: equal counts, first difference, missing records.

Values are compared as exact text: hex floats of quantities, digests and fingerprints, never numbers. The first
divergence is the one at the lowest step. Within a step, it is the first in causal order.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from m5ws.records.ledger import COMPLETE, AnyEvent, CheckpointPublished, RankEnded, State, Step, unproven_values
from m5ws.records.verdict import FINAL, Divergence, DivergenceSummary, is_state
from m5ws.repository import checkpoints
from m5ws.repository.repository import Repository
from m5ws.reproduce import ends
from m5ws.reproduce.distances import Distances
from m5ws.runs import recorded_steps
from m5ws.runs.history import History
from m5ws.runs.numbers import Numbers, common, union
from m5ws.runs.recorded_steps import Series

_ORDER = ("batch", "output", "loss", "grad_norm")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference; sorts by step, then causal order, then rank."""

    step: int
    order: int
    rank: int
    quantity: str
    original: str | None
    replayed: str | None

    @property
    def key(self) -> tuple[int, int, int, str]:
        return (self.step, self.order, self.rank, self.quantity)


class Comparison:
    """Compares events of a replay, fed in each rank's order, with those of the original, in fixed memory.

    `source` is the store and the run from which older steps of the replay are read. Generators that a script without a
    session did not restore in its resume are kept apart from all other differences, which say more.
    """

    def __init__(self, original: History, source: tuple[Repository, str] | None = None) -> None:
        self.original = original
        self._unrestored: dict[tuple[int, int], frozenset[str]] = {}
        """Generators that differ in the first state after a resume, by rank and the last step before the resume."""
        self.generator_steps: dict[int, Numbers] = {}
        """Steps by rank after which generators that a resume did not restore differ."""
        self.replay = History(steps={}, states={}, contents={}, facts={}, notices=[], source=source)
        self.equal: Counter[str] = Counter()
        self._first: Difference | None = None
        self._tensors: tuple[int, list[str]] | None = None
        self._differing: dict[str, dict[int, Numbers]] = {}
        self._reached: dict[int, int] = {}
        self._ended: set[int] = set()
        self._settled_at: int | None = None
        self.lost_steps: dict[int, Numbers] = {}
        """Steps by rank that the original trained but its record lacks: a checkpoint after them exists."""
        self.unplaced_steps: dict[int, Numbers] = {}
        """Steps by rank that differ, and whose numbers are guessed."""
        self.distances = Distances()

    def feed(self, rank: str, event: AnyEvent) -> None:
        """Add one event of the replay, and compare it with the original's event of the same rank and step."""
        self.replay.add(rank, event)
        if isinstance(event, CheckpointPublished) and not event.outputs:
            self._compare_content(event)
        if not rank.isdigit():
            return
        if isinstance(event, Step):
            self._compare_step(int(rank), event)
        elif isinstance(event, State) and not event.restored:
            self._compare_state(int(rank), event)
        elif isinstance(event, RankEnded):
            self._ended.add(int(rank))

    def first(self) -> Divergence | None:
        """Return the first divergence so far, with the tensor that a later fingerprint names for it."""
        first = self._first
        if first is None:
            return None
        step, tensors = self._tensors or (None, [])
        return Divergence(
            step=first.step,
            rank=first.rank,
            quantity=first.quantity,
            original=first.original,
            replayed=first.replayed,
            tensor=tensors[0] if tensors else None,
            tensor_step=step,
            tensors_differ=len(tensors),
            equal_after=self._equal_after(first),
        )

    def _equal_after(self, first: Difference) -> int | None:
        """Return the last compared state before a difference in the state, if there are states between; else None."""
        if not is_state(first.quantity):
            return None
        known, new = (side.states.get(first.rank, {}) for side in (self.original, self.replay))
        step = recorded_steps.up_to(known, first.step - 1)
        while step is not None and step not in new:
            step = recorded_steps.up_to(known, step - 1)
        return step if step is not None and step < first.step - 1 else None

    def is_decided(self) -> bool:
        """Return True if the first divergence is final.

        It is final when each rank has passed its step and recorded its state up to there. Only states that the original
        recorded up to that step are awaited: a later state would cost all steps up to it.
        """
        if self._first is None:
            return False
        step = self._first.step
        if self._settled_at == step:
            return True
        # A replay on fewer ranks does not wait for the ranks that it lacks.
        ranks = [rank for rank in self.original.steps if rank < (self.replay.world or rank + 1)]
        if all(rank in self._ended or self._has_recorded(rank, step) for rank in ranks):
            self._settled_at = step
        return self._settled_at == step

    def _has_recorded(self, rank: int, step: int) -> bool:
        """Return True if a rank has recorded all up to a step. State that is saved in the background arrives late."""
        known = recorded_steps.up_to(self.original.states.get(rank, {}), step)
        state = known is None or recorded_steps.last(self.replay.states.get(rank, {})) >= known
        return state and self._reached.get(rank, 0) >= step

    def course(self) -> DivergenceSummary:
        """Return a summary of the divergence so far, over all ranks."""
        by = {kind: _count(ranks.values()) for kind, ranks in sorted(self._differing.items())}
        every = [numbers for ranks in self._differing.values() for numbers in ranks.values()]
        return DivergenceSummary(
            compared=common(_distinct(self.replay.steps.values()), _distinct(self.original.steps.values())),
            differ=_count(every),
            last=max((numbers.last or 0 for numbers in every), default=0),
            by={kind: count for kind, count in by.items() if count},
        )

    def is_exhausted(self, *, has_ended: bool = False) -> bool:
        """Return True if the original did not finish and all of its steps have been compared.

        Until the replay `has_ended`, the last step may get more records: its state, or those of later ranks.
        """
        if self.original.outcome in COMPLETE:
            return False
        last = self.original.last_step
        return last > 0 and (
            set(self._reached) >= set(self.original.steps)
            and min(self._reached.values(), default=0) >= last + (not has_ended)
        )

    def unrestored_generators(self) -> tuple[str, ...]:
        """Return the names of the generators that a resume did not restore."""
        return tuple(sorted(frozenset[str]().union(*self._unrestored.values())))

    @property
    def placed_until(self) -> int | None:
        """The last step up to which the numbers of both sides are known to be right; None if all are."""
        guessed = [side.guessed for side in (self.original, self.replay) if side.guessed is not None]
        return min(guessed, default=None)

    def state_compared(self) -> bool:
        """Return True if the last state of the original was compared. Equal losses alone prove little."""
        last = {rank: recorded_steps.last(states) for rank, states in self.original.states.items()}
        replayed = all(step in self.replay.states.get(rank, {}) for rank, step in last.items() if self.is_placed(step))
        return replayed and min(last.values(), default=0) > 0

    def compare_ends(self) -> None:
        """Compare the weights at the ends of two scripts without a session, if both have finished."""
        if not self._have_finished:
            return
        step = self.original.last_step
        for rank in self.original.weights:
            known, new = self._ends(rank)
            for name in known.keys() & new.keys():
                if known[name] == new[name]:
                    self.equal["final tensors"] += 1
                else:
                    self._differs(step, len(_ORDER) + 4, rank, f"{FINAL}{name}", known[name], new[name])

    def ends_unknown(self) -> bool:
        """Return True if two scripts without a session have finished, and weights at their ends are not recorded."""
        ranks = self.original.weights.keys() & self.replay.weights.keys()
        return self.original.observed and self._have_finished and not ranks >= self.original.steps.keys()

    def unlike_ends(self) -> str | None:
        """Return the first tensor at the end of a script of which only one side has a record; None without one.

        A resumed attempt records the modules that it called.
        """
        if not self._have_finished:
            return None
        for rank in sorted(self.original.weights.keys() & self.replay.weights.keys()):
            known, new = self._ends(rank)
            if unlike := known.keys() ^ new.keys():
                return min(unlike).replace(ends.UNPAIRED, "", 1)
        return None

    def _ends(self, rank: int) -> tuple[dict[str, str], dict[str, str]]:
        """Return the fingerprints of a rank's weights at the ends of both scripts by name."""
        known, new = self.original.weights[rank], self.replay.weights.get(rank, {})
        return known, ends.align(known, new) if self._was_resumed(self.original.last_step) else new

    @property
    def _have_finished(self) -> bool:
        return self.original.outcome in COMPLETE and self.replay.outcome in COMPLETE

    def last_unchecked_resume(self) -> int | None:
        """Return the step of the last resume of a script without a session, if no state after it was compared."""
        states, new = self.original.states.get(0, {}), self.replay.states.get(0, {})
        last = max((step for step in states if step in new), default=0)
        for side in (self.original, self.replay):
            resumed = side.resumed_before(side.last_step)
            if side.observed and resumed and last <= resumed:
                return resumed
        return None

    def is_placed(self, step: int) -> bool:
        """Return True if the number of a step is known to be right on both sides."""
        return self.placed_until is None or step <= self.placed_until

    def _differs(self, step: int, order: int, rank: int, quantity: str, original: str | None, new: str | None) -> None:
        if not self.is_placed(step):
            self.unplaced_steps.setdefault(rank, Numbers()).add(step)
            return
        difference = Difference(step=step, order=order, rank=rank, quantity=quantity, original=original, replayed=new)
        if self._first is None or difference.key < self._first.key:
            self._first = difference
        kind = quantity if order <= len(_ORDER) else quantity.partition(" ")[0]
        kind = FINAL.rstrip() if quantity.startswith(FINAL) else kind
        self._differing.setdefault(kind, {}).setdefault(rank, Numbers()).add(step)

    def _compare_step(self, rank: int, event: Step) -> None:
        self._reached[rank] = event.step
        known = self.original.steps.get(rank, {}).get(event.step)
        if known is None:
            if self.original.is_lost(event.step):
                self.lost_steps.setdefault(rank, Numbers()).add(event.step)
            elif self.original.outcome in COMPLETE:
                self._differs(event.step, 0, rank, "step", None, "done")
            return
        before = {"batch": known.batch} | known.digests | known.quantities | _named_updates(known)
        after = {"batch": event.batch} | event.digests | event.quantities | _named_updates(event)
        same = True
        unproven: frozenset[str] = frozenset()
        if self._was_resumed(event.step):
            unproven = unproven_values(known, event, is_first=self._is_partial(event.step))
            unproven |= _named_updates(known).keys() ^ _named_updates(event).keys()
        names = [
            name
            for name in dict.fromkeys([*before, *after])
            if name not in unproven or before.get(name) == after.get(name)
        ]
        for name in names:
            old, new = before.get(name), after.get(name)
            if old != new:
                same = False
                order = _ORDER.index(name) if name in _ORDER else len(_ORDER)
                self._differs(event.step, order, rank, name, old, new)
            elif old is not None:
                kind = "batches" if name == "batch" else "digests" if name in known.digests else "quantities"
                self.equal[kind] += name == "batch" or name in known.digests or name in known.quantities
        self.equal["steps"] += same
        self.distances.add(known, event, rank)

    def _was_resumed(self, step: int) -> bool:
        """Return True if a step is of a later attempt of a script without a session."""
        return any(side.observed and side.resumed_before(step) is not None for side in (self.original, self.replay))

    def _is_partial(self, step: int) -> bool:
        """Return True if either side may lack values of a step."""
        return self.original.is_partial(step) or self.replay.is_partial(step)

    def _compare_state(self, rank: int, event: State) -> None:
        known = self.original.states.get(rank, {}).get(event.step)
        if known is None:
            return
        if self._was_resumed(event.step):
            # An attempt does not know the modules that only the step before its first one called, and may not know
            # which one of several equal modules it calls.
            known, event = _common(known, event), _common(event, known)
        unrestored = self._find_unrestored(known, event, rank)
        self._compare_named(
            "generator", known.generators, event.generators, rank, event.step, len(_ORDER) + 1, unrestored
        )
        tensors = self._compare_named("tensor", known.tensors, event.tensors, rank, event.step, len(_ORDER) + 2)
        if tensors and (self._tensors is None or event.step < self._tensors[0]):
            self._tensors = (event.step, tensors)

    def _find_unrestored(self, known: State, event: State, rank: int) -> frozenset[str]:
        """Return the generators that the last resume before a state did not restore, for a script without a session."""
        resumed = max(side.resumed_before(event.step) or 0 for side in (self.original, self.replay))
        differed_before = self._first is not None and self._first.step <= resumed
        # A script that begins after step 0 started from the beginning, and resumed nothing.
        if not (self.original.observed and resumed and self.is_placed(event.step)) or differed_before:
            return frozenset()
        names = known.generators.keys() | event.generators.keys()
        differ = frozenset(name for name in names if known.generators.get(name) != event.generators.get(name))
        return self._unrestored.setdefault((rank, resumed), differ)

    def _compare_named(
        self,
        kind: str,
        before: dict[str, str],
        after: dict[str, str],
        rank: int,
        step: int,
        order: int,
        unrestored: frozenset[str] = frozenset(),
    ) -> list[str]:
        differ = []
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name):
                differ.append(name)
                if name in unrestored:
                    self.generator_steps.setdefault(rank, Numbers()).add(step)
                else:
                    self._differs(step, order, rank, f"{kind} {name}", before.get(name), after.get(name))
            else:
                self.equal[f"{kind}s"] += 1
        return differ

    def _compare_content(self, event: CheckpointPublished) -> None:
        known = self.original.contents.get(event.step)
        if known is None:
            return
        if known != event.content:
            self._differs(event.step, len(_ORDER) + 3, 0, "checkpoint", known, event.content)
        else:
            self.equal["checkpoints"] += 1


def compare_histories(original: History, replay: History) -> Comparison:
    """Return the comparison of two runs that have ended: the last record of each step, state and checkpoint."""
    comparison = Comparison(original)
    comparison.replay = msgspec.structs.replace(replay, steps={}, states={}, contents={}, published={})
    for step, content in replay.contents.items():
        name = checkpoints.name(step, 1)
        comparison.feed("0", CheckpointPublished(step=step, name=name, checkpoint=content, content=content))
    for rank, states in replay.states.items():
        for state in states.values():
            comparison.feed(str(rank), state)
    for rank, steps in replay.steps.items():
        for event in steps.values():
            comparison.feed(str(rank), event)
    comparison.replay = replay
    return comparison


def _named_updates(step: Step) -> dict[str, str]:
    """Return the numbers of updates of a step by names for people."""
    return {f"number of updates of {label}": str(count) for label, count in step.updates.items()}


def _common(state: State, other: State) -> State:
    """Return a state with the tensors alone that another one has too."""
    tensors = {name: value for name, value in state.tensors.items() if name in other.tensors}
    return msgspec.structs.replace(state, tensors=tensors)


def _distinct(ranks: Iterable[Iterable[int]]) -> Iterator[int]:
    """Yield the steps that any rank has; most ranks have the same."""
    return union(steps if isinstance(steps, Series) else sorted(steps) for steps in ranks)


def _count(ranks: Iterable[Numbers]) -> int:
    """Return the number of steps that any of the ranks has, without step 0."""
    return sum(1 for step in union(ranks) if step)
