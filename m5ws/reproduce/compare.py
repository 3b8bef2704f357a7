"""Comparison of a replay with its original while it grows: equal counts, first difference, missing records.

Values are compared as exact text: hex floats of quantities, digests and fingerprints, never numbers. The first
divergence is the difference at the lowest step. Within a step, it is the first in causal order. If both sides ended by
themselves, their numbers of steps are compared, both ways: the first step that one side lacks differs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from m5ws.attempts.repeated_steps import names_in_both, values
from m5ws.records.ledger import COMPLETE, AnyEvent, CheckpointPublished, RankEnded, State, Step
from m5ws.records.verdict import Divergence, QuantityKind
from m5ws.repository.repository import Repository
from m5ws.runs import recorded_steps
from m5ws.runs.history import History
from m5ws.runs.numbers import Numbers, common, union

_ORDER = ("batch", "output", "loss", "grad_norm")
_STEPS = "number of steps"
_KINDS: tuple[QuantityKind, ...] = ("generator", "tensor", "checkpoint", "final tensor")
"""Kinds in causal order, after the values of a step."""


_LISTED = frozenset(("value", "steps", "generator"))
"""Kinds of quantities that a divergence lists all. Of tensors, it has one name and the number."""


class Comparison:
    """Compares events of a replay, fed in each rank's order, with events of the original, in a few bytes for each step.

    `source` is the store and the run from which older steps of the replay are read. A resume of a script without a
    session may not restore generators, so generators that differ after a resume are listed, and are no divergence.
    """

    def __init__(self, original: History, source: tuple[Repository, str] | None = None) -> None:
        self.original = original
        self.replay = History(source=source)
        self.unrestored: set[str] = set()
        """Generators that differ after a resume of a script without a session."""
        self.unrestored_after: dict[int, Numbers] = {}
        """Steps by rank after which they differ."""
        self.equal: Counter[str] = Counter()
        self._first: Divergence | None = None
        self._place = (0, 0, 0, "")
        """Step, causal order, rank and quantity of the first difference."""
        self._at_first: set[tuple[QuantityKind, str]] = set()
        """The quantities that differ at the first difference's step."""
        self._tensors: tuple[int, list[str]] | None = None
        self._reached: dict[int, int] = {}
        self._ended: set[int] = set()
        self._settled_at: int | None = None
        self.lost_steps: dict[int, Numbers] = {}
        """Steps by rank that the original trained but its record lacks: a checkpoint after them exists."""

    def feed(self, rank: str, event: AnyEvent) -> bool:
        """Add one event of the replay, and compare it with the original's event of the same rank and step.

        Return `is_decided`.
        """
        self.replay.add(rank, event)
        self.compare(rank, event)
        return self.is_decided()

    def compare(self, rank: str, event: AnyEvent) -> None:
        """Compare one event of the replay, which has it already."""
        if isinstance(event, CheckpointPublished):
            self.compare_content(event.step, event.content)
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
        if self._first is None:
            return None
        step, tensors = self._tensors or (None, [])
        return msgspec.structs.replace(
            self._first,
            tensor=tensors[0] if tensors else None,
            tensor_step=step,
            tensors_differ=len(tensors),
            equal_after=self._equal_after(self._first),
            differing=tuple(self._differing_at_first()),
        )

    def _differing_at_first(self) -> Iterator[str]:
        """Yield the names of the quantities that differ at the step of the first divergence, the generators first."""
        for kind, name in sorted(self._at_first, key=lambda each: (each[0] != "generator", _find_order(*each), each)):
            yield f"generator {name}" if kind == "generator" else name

    def _equal_after(self, first: Divergence) -> int | None:
        """Return the last compared state before a difference in the state, if there are states between; else None."""
        if not first.is_state:
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

    def count_compared(self) -> int:
        """Return the number of steps that both sides recorded on any rank."""
        return common(union(self.replay.steps.values()), union(self.original.steps.values()))

    def is_exhausted(self, *, has_ended: bool = False) -> bool:
        """Return True if the original did not finish and all of its steps have been compared.

        Until the replay `has_ended`, the last step may get more records: its state, or records of later ranks.
        """
        if self.original.outcome in COMPLETE:
            return False
        last = self.original.last_step
        return last > 0 and (
            set(self._reached) >= set(self.original.steps)
            and min(self._reached.values(), default=0) >= last + (not has_ended)
        )

    def without_place(self) -> tuple[int, ...]:
        """Return the attempts of either side whose steps have no numbers in the run."""
        return tuple(sorted({*self.original.without_place, *self.replay.without_place}))

    def state_compared(self) -> bool:
        """Return True if the last state of the original was compared. Equal losses alone prove little."""
        last = {rank: recorded_steps.last(states) for rank, states in self.original.states.items()}
        replayed = all(step in self.replay.states.get(rank, {}) for rank, step in last.items())
        return replayed and min(last.values(), default=0) > 0

    def compare_ends(self) -> None:
        """Compare the numbers of steps, and the weights alive at the ends, if both sides ended by themselves."""
        if not self._have_ended():
            return
        if not self.without_place():
            for rank, steps in self.original.steps.items():
                done, again = recorded_steps.last(steps), recorded_steps.last(self.replay.steps.get(rank, {}))
                # A replay on fewer ranks lacks records, and no steps.
                if again < done and rank < (self.replay.world or rank + 1):
                    self._differs(again + 1, rank, "steps", _STEPS, str(done), str(again))
        for rank, known, new in self._ends():
            for name in known.keys() & new.keys() if self._are_alike(known, new) else ():
                if known[name] == new[name]:
                    self.equal["final tensors"] += 1
                else:
                    step = self.original.last_step
                    self._differs(step, rank, "final tensor", name, known[name], new[name])

    def ends_unknown(self) -> bool:
        """Return True if two scripts without a session ended by themselves, and an end is not recorded."""
        sides = (self.original, self.replay)
        are_known = all(side.weights.keys() >= self.original.steps.keys() for side in sides)
        return self.original.observed and self._have_ended() and not are_known

    def unlike_ends(self) -> tuple[str, ...]:
        """Return the weights at the end that one side recorded, and the weights that neither side recorded."""
        unlike = {name for _, known, new in self._ends() for name in known.keys() ^ new.keys()}
        unread = self.original.unread | self.replay.unread if self._have_ended() else set[str]()
        return (*sorted(unread), *sorted(unlike))

    def _ends(self) -> list[tuple[int, dict[str, str], dict[str, str]]]:
        """Return the fingerprints of the weights at the ends of both scripts, by rank, if they are comparable."""
        original, replay = self.original, self.replay
        is_whole = original.last_step == replay.last_step or bool(self.without_place())
        if not self._have_ended() or not is_whole or original.world != replay.world:
            return []
        ranks = sorted(original.weights.keys() & replay.weights.keys())
        return [(rank, original.weights[rank], replay.weights[rank]) for rank in ranks]

    def _are_alike(self, known: dict[str, str], new: dict[str, str]) -> bool:
        """Return True if equal names are of the same weights. A resumed attempt may name others by them."""
        return known.keys() == new.keys() or max(self.original.attempt, self.replay.attempt) < 2

    def _have_ended(self) -> bool:
        return self.original.outcome in COMPLETE and self.replay.outcome in COMPLETE

    def _differs(
        self, step: int, rank: int, kind: QuantityKind, quantity: str, original: str | None, new: str | None
    ) -> None:
        place = (step, _find_order(kind, quantity), rank, quantity)
        if self._first is None or step < self._first.step:
            self._at_first = set()
        if kind in _LISTED and (self._first is None or step <= self._first.step):
            self._at_first.add((kind, quantity))
        if self._first is None or place < self._place:
            self._place = place
            self._first = Divergence(
                step=step, rank=rank, kind=kind, quantity=quantity, original=original, replayed=new
            )

    def _compare_step(self, rank: int, event: Step) -> None:
        self._reached[rank] = event.step
        known = self.original.steps.get(rank, {}).get(event.step)
        if known is None:
            self._compare_beyond(rank, event.step)
            return
        before, after = values(known), values(event)
        same = True
        resumed = self._was_resumed(event.step)
        for name in names_in_both(known, event) if resumed else dict.fromkeys([*before, *after]):
            old, new = before.get(name), after.get(name)
            if old != new:
                same = False
                self._differs(event.step, rank, "value", name, old, new)
            elif old is not None:
                kind = "batches" if name == "batch" else "digests" if name in known.digests else "quantities"
                self.equal[kind] += name == "batch" or name in known.digests or name in known.quantities
        self.equal["steps"] += same

    def _compare_beyond(self, rank: int, step: int) -> None:
        """Compare a step of the replay that the original's record lacks."""
        if self.original.is_lost(step):
            self.lost_steps.setdefault(rank, Numbers()).add(step)
        elif self.original.outcome in COMPLETE and not self.original.without_place:
            done = recorded_steps.last(self.original.steps.get(rank, {}))
            self._differs(step, rank, "steps", _STEPS, str(done), f"{step} or more")

    def _was_resumed(self, step: int) -> bool:
        """Return True if a step is of a later attempt of a script without a session."""
        return any(side.observed and side.resumed_before(step) is not None for side in (self.original, self.replay))

    def _compare_state(self, rank: int, event: State) -> None:
        known = self.original.states.get(rank, {}).get(event.step)
        if known is None:
            return
        if self._was_resumed(event.step):
            # An attempt does not know the modules that only the step before its first one called, and may not know
            # which one of several equal modules it calls.
            known, event = _common(known, event), _common(event, known)
            if unrestored := differing(known.generators, event.generators):
                self.unrestored.update(unrestored)
                self.unrestored_after.setdefault(rank, Numbers()).add(event.step)
        else:
            self._compare_named("generator", known.generators, event.generators, rank, event.step)
        tensors = self._compare_named("tensor", known.tensors, event.tensors, rank, event.step)
        if tensors and (self._tensors is None or event.step < self._tensors[0]):
            self._tensors = (event.step, tensors)

    def _compare_named(
        self, kind: QuantityKind, before: dict[str, str], after: dict[str, str], rank: int, step: int
    ) -> list[str]:
        differ = differing(before, after)
        for name in differ:
            self._differs(step, rank, kind, name, before.get(name), after.get(name))
        self.equal[f"{kind}s"] += len(before.keys() | after.keys()) - len(differ)
        return differ

    def compare_content(self, step: int, content: str) -> None:
        """Compare the content of the replay's checkpoint after a step."""
        known = self.original.contents.get(step)
        if known == content:
            self.equal["checkpoints"] += 1
        elif known is not None:
            self._differs(step, 0, "checkpoint", "checkpoint", known, content)


def compare_histories(original: History, replay: History) -> Comparison:
    """Return the comparison of two runs that have ended: the last record of each step, state and checkpoint."""
    comparison = Comparison(original)
    comparison.replay = replay
    for step, content in replay.contents.items():
        comparison.compare_content(step, content)
    # Step by step: the ranks of a node share its batches, and each batch is read once.
    for step in union([*replay.states.values(), *replay.steps.values()]):
        for by_rank in (replay.states, replay.steps):
            for rank, events in by_rank.items():
                if step in events:
                    comparison.compare(str(rank), events[step])
    return comparison


def _find_order(kind: QuantityKind, quantity: str) -> int:
    """Return the place of a quantity in causal order."""
    if kind in _KINDS:
        return len(_ORDER) + 1 + _KINDS.index(kind)
    if kind == "steps":
        return 0
    return _ORDER.index(quantity) if quantity in _ORDER else len(_ORDER)


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names whose values differ, in the order of `before`, then of `after`."""
    return [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]


def _common(state: State, other: State) -> State:
    """Return a state with the tensors alone that another state has too."""
    tensors = {name: value for name, value in state.tensors.items() if name in other.tensors}
    return msgspec.structs.replace(state, tensors=tensors)
