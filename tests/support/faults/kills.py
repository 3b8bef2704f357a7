"""Kills at random moments of an operation, drawn over its usual duration."""

import random
import statistics
import time

import msgspec

from tests.support.campaigns import soak_page
from tests.support.ranks.warm import Ended

_HEADER = "| operation | place | seed | kills | ended before | done, not yet ended | usual time | seconds |"
_LINE = "|---|---|---|---|---|---|---|---|"


class Kills:
    """Draws moments, counts the results, and writes them into docs/soak.md.

    A process that ended before its moment counts as no kill, and another moment is drawn.
    """

    def __init__(self, what: str, where: str, seed: int) -> None:
        self._names = (what, where)
        self._seed = seed
        self._began_s = time.monotonic()
        self._usual = list[float]()
        self.draw = random.Random(seed)
        self.kills = 0
        self.early = 0
        self.done = 0

    def usual(self, ended: Ended) -> None:
        """Measure the current duration with an undisturbed process, since other work on the machine changes it."""
        assert not ended.killed
        self._usual.append(ended.seconds)

    def moment_s(self) -> float:
        """Return the next moment to kill a process, in seconds after its start."""
        return self.draw.uniform(0, statistics.median(self._usual[-3:]))

    def count(self, ended: Ended, *, done: bool = False) -> None:
        """Count a process. A killed process may have `done` everything that is visible to others."""
        self.kills += ended.killed
        self.early += not ended.killed
        self.done += ended.killed and done

    def row(self) -> str:
        """Return the line of the table."""
        seconds = (f"{statistics.median(self._usual) * 1000:,.0f} ms", f"{time.monotonic() - self._began_s:,.0f}")
        cells = (*self._names, self._seed, self.kills, self.early, self.done, *seconds)
        return "| " + " | ".join(map(str, cells)) + " |"

    def report(self, *, write: bool) -> None:
        """Print the line, and put it into the table with `write`."""
        print(self.row())
        if write:
            soak_page.put("kills", (_HEADER, _LINE), self.row(), cells=2)


class Scale(msgspec.Struct, frozen=True):
    """The number of kills. Results of long campaigns go into docs/soak.md."""

    kills: int
    soak: bool = False

    def seed(self) -> int:
        return random.SystemRandom().randrange(10**6) if self.soak else 7
