"""Single bits of a store in a directory, flipped and flipped back: `fsck` must name each damaged object."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from m5ws.errors import M5Error
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.environment import Observed
from m5ws.records.snapshot import Snapshot
from m5ws.records.tree import Tree
from m5ws.repository.fsck import fsck
from m5ws.repository.repository import Repository

_RECORDS = Snapshot | Tree | Content | Checkpoint | Observed


class Flip(msgspec.Struct, frozen=True):
    """A bit of an object: its key and the number of the bit, counted from 0."""

    key: str
    bit: int


class Tally(msgspec.Struct, kw_only=True):
    """Flipped bits by kind of object; flipped objects without a finding; findings on unflipped objects."""

    flips: Counter[str] = msgspec.field(default_factory=Counter)
    missed: list[Flip] = []
    accused: list[str] = []


class Bits:
    """All objects of a store and their bits. Each `check` leaves the store as it was."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._root = Path(repo.store.url)
        self.sizes = {stat.key: stat.size_bytes for stat in repo.store.list("") if stat.size_bytes}
        self._kinds = {key: self._kind(key) for key in self.sizes}

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())

    def draw(self, draw: random.Random, number: int) -> list[Flip]:
        """Return bits of different objects, at most one of each chain, since fsck names the first fault of a chain."""
        keys = draw.sample(sorted(self.sizes), len(self.sizes))
        flips: dict[str, Flip] = {}
        for key in keys:
            chain = key.rpartition("/")[0] if "/ledger/" in key else key
            flips.setdefault(chain, Flip(key, draw.randrange(8 * self.sizes[key])))
        return list(flips.values())[:number]

    def check(self, flips: Sequence[Flip], tally: Tally) -> None:
        """Flip bits, have the store checked, and flip them back."""
        for flip in flips:
            self._turn(flip)
        try:
            report = fsck.check(self._repo)
        finally:
            for flip in flips:
                self._turn(flip)
        named = Counter(damage.key for damage in report.damage)
        tally.flips.update(self._kinds[flip.key] for flip in flips)
        tally.missed += [flip for flip in flips if not named[flip.key]]
        tally.accused += sorted((named - Counter(flip.key for flip in flips)).elements())

    def _turn(self, flip: Flip) -> None:
        path = self._root / flip.key
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(flip.bit // 8)
            byte = file.read(1)[0]
            file.seek(flip.bit // 8)
            file.write(bytes([byte ^ 1 << flip.bit % 8]))

    def _kind(self, key: str) -> str:
        if "/ledger/" in key:
            return "ledger batches"
        if not key.startswith("objects/"):
            return "references, plans, format"
        try:
            codec.decode(self._repo.store.get(key), _RECORDS)  # type: ignore[arg-type]
        except M5Error:
            return "chunks and packs"
        return "records"
