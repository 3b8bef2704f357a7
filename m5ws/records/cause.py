"""Records of causes of failures: a class with its rule, and a cause that was found. No I/O here."""

from typing import Literal

from m5ws.records.base import Record

Level = Literal["cascade", "script", "root"]
"""`cascade`: the effect of a failure on other ranks. `script`: any exception. `root`: a failure itself."""
Owner = Literal["user", "infrastructure", "storage", "network", "platform"]


class Rule(Record, frozen=True, kw_only=True):
    """A class of causes: regular expressions of its lines, advice, the party that can act, and the use of a restart."""

    title: str
    patterns: tuple[str, ...]
    advice: str
    owner: Owner
    retry: bool
    level: Level = "root"


class Cause(Record, frozen=True, kw_only=True):
    """The cause of a failure. `rank` is the name of its log, and `line` counts from 1: 0 if the lines are
    no log, but the recorded failure or the end of the attempt. Then the rank is "" if it is unknown.

    `evidence` has the lines around it, and `others` the classes of the other ranks' failures, by rank. A cause of level
    "cascade" follows from a failure that left no line of a rule, so it began elsewhere. `place` is the line at which a
    stuck rank is, FILE:LINE.
    """

    kind: str
    level: Level
    title: str
    owner: str
    retry: bool
    advice: str
    rank: str
    line: int
    evidence: tuple[str, ...]
    others: dict[str, str]
    place: str | None = None
