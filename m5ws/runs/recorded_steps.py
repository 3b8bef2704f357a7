"""Steps and states of one rank by their numbers: of a ledger, which is read as they are needed, and of a live run.

Invariant: a node's chain takes 16 bytes for each of its values, a number for each of its batches, and two batches.
"""

from abc import abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TypeGuard, TypeVar

from m5ws.errors import CorruptObject
from m5ws.records.ledger import AnyEvent, Batch, State, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.runs.numbers import Numbers, union

R = TypeVar("R", bound=Step | State)
_BATCHES = 2
_END = 2**63 - 1
RECENT: dict[type, int] = {Step: 1024, State: 64}
"""Number of the newest values of a live run that are held for each rank."""


class Series(Mapping[int, R]):
    """Values by their steps, in ascending order."""

    @abstractmethod
    def up_to(self, number: int) -> int | None:
        """Return the last step that has a value and is not after `number`, or None."""

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.up_to(number) == number

    def __len__(self) -> int:
        return sum(1 for _ in self)


class RecordedChain:
    """A node's chain whose batches were checked once, read again one batch at a time for its ranks in `origins`."""

    def __init__(
        self, repo: Repository, run: str, attempt: int, node: int, origins: Container[str] | None = None
    ) -> None:
        self._repo, self._chain, self._origins = repo, (run, attempt, node), origins
        self._heads = array("Q")
        self._held: OrderedDict[int, dict[tuple[str, type, int], Step | State]] = OrderedDict()

    def note(self, batch: Batch) -> None:
        """Take in the next batch, which was checked against the batch before."""
        self._heads.append(_short(batch))

    def values(self, seq: int) -> dict[tuple[str, type, int], Step | State]:
        """Return the steps and states of a batch by rank. Raises CorruptObject if it has changed since its check."""
        if seq not in self._held:
            while len(self._held) >= _BATCHES:
                self._held.popitem(last=False)
            batch = ledger.fetch(self._repo, *self._chain, seq)
            if _short(batch) != self._heads[seq]:
                raise CorruptObject(f"batch {seq} of {'/'.join(map(str, self._chain))} was changed while it was read")
            events = ledger.decode(batch, self._origins)
            self._held[seq] = {(rank, type(event), event.step): event for rank, event in events if counts(event)}
        return self._held[seq]


def counts(event: AnyEvent) -> TypeGuard[Step | State]:
    """Return True for steps, and for states that were not read back from a checkpoint."""
    return isinstance(event, Step) or (isinstance(event, State) and not event.restored)


def _short(batch: Batch) -> int:
    return int(batch.head[:16], 16)


class ChainSeries(Series[R]):
    """The steps, or states, of a rank in one chain, each with its batch.

    `cut` removes steps that a later attempt does again.
    """

    def __init__(self, chain: RecordedChain, rank: str, kind: type[R]) -> None:
        self.chain = chain
        self._rank, self._kind = rank, kind
        self._numbers, self._seqs = array("q"), array("q")

    def note(self, seq: int, number: int) -> None:
        """Note that batch `seq` has a value of step `number`. The newest batch counts."""
        place = bisect_left(self._numbers, number)
        if self._numbers[place : place + 1] == array("q", [number]):
            self._seqs[place] = seq
        else:
            self._numbers.insert(place, number)
            self._seqs.insert(place, seq)

    def cut(self, last: int) -> None:
        place = bisect_right(self._numbers, last)
        del self._numbers[place:], self._seqs[place:]

    def up_to(self, number: int) -> int | None:
        place = bisect_right(self._numbers, number)
        return self._numbers[place - 1] if place else None

    def __getitem__(self, number: int) -> R:
        """Return the newest value of a step. Raises KeyError, CorruptObject."""
        if number not in self:
            raise KeyError(number)
        values = self.chain.values(self._seqs[bisect_left(self._numbers, number)])
        value = values.get((self._rank, self._kind, number))
        if not isinstance(value, self._kind):
            raise CorruptObject(f"step {number} is not in the ledger any more")
        return value

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class JoinedSeries(Series[R]):
    """The values of one rank over all attempts; the newest attempt that has a step counts."""

    def __init__(self) -> None:
        self.parts: list[ChainSeries[R]] = []

    def note(self, chain: RecordedChain, rank: str, seq: int, value: R) -> None:
        """Note that batch `seq` of a chain has a value. All values of a chain come before the next chain's."""
        if not self.parts or self.parts[-1].chain is not chain:
            self.parts.append(ChainSeries(chain, rank, type(value)))
        self.parts[-1].note(seq, value.step)

    def up_to(self, number: int) -> int | None:
        values = (part.up_to(number) for part in self.parts)
        return max((step for step in values if step is not None), default=None)

    def cut(self, last: int) -> None:
        for part in self.parts:
            part.cut(last)

    def __getitem__(self, number: int) -> R:
        part = next((part for part in reversed(self.parts) if number in part), None)
        if part is None:
            raise KeyError(number)
        return part[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self.parts[0]) if len(self.parts) == 1 else union(self.parts)


class LiveSeries(Series[R]):
    """The values of one rank of a run that goes on: the newest values, and older values as `older` has them."""

    def __init__(self, kind: type[R], older: Callable[[], Mapping[int, R]]) -> None:
        self._most = RECENT[kind]
        self._older = older
        self._numbers = Numbers()
        self._recent: OrderedDict[int, R] = OrderedDict()

    def add(self, value: R) -> None:
        """Take in the next value."""
        self._numbers.add(value.step)
        self._recent[value.step] = value
        if len(self._recent) > self._most:
            self._recent.popitem(last=False)

    def cut(self, last: int) -> None:
        self._numbers.cut(last)
        for number in [number for number in self._recent if number > last]:
            del self._recent[number]

    def up_to(self, number: int) -> int | None:
        return self._numbers.up_to(number)

    def __getitem__(self, number: int) -> R:
        if number not in self._numbers:
            raise KeyError(number)
        return self._recent[number] if number in self._recent else self._older()[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class SeriesRange(Series[R]):
    """The values of another series after step `first`, up to step `end`."""

    def __init__(self, whole: Mapping[int, R], first: int, end: int) -> None:
        self._whole = whole
        self._first, self._end = first, end

    def up_to(self, number: int) -> int | None:
        step = up_to(self._whole, min(number, self._end))
        return step if step is not None and step > self._first else None

    def __getitem__(self, number: int) -> R:
        if number not in self:
            raise KeyError(number)
        return self._whole[number]

    def __iter__(self) -> Iterator[int]:
        return (number for number in self._whole if self._first < number <= self._end)


def up_to(values: Mapping[int, object], number: int) -> int | None:
    """Return the last step that has a value and is not after `number`, or None."""
    if isinstance(values, Series):
        return values.up_to(number)
    return max((step for step in values if step <= number), default=None)


def last(values: Mapping[int, object]) -> int:
    """Return the last step that has a value, or 0."""
    return up_to(values, _END) or 0
