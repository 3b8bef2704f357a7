"""The decision about a restart after a failure, from the attempts of a run. Nothing is read or written here.

Two numbers limit restarts: `max` the restarts that brought no checkpoint forward, and `same_cause` the repetitions of
a cause. Repetitions count over checkpoints if the software is the cause, because each attempt has the same software.
"""

from collections.abc import Sequence

import msgspec

from m5ws.config.settings import RestartSettings

_RESTARTABLE = ("ranks failed", "status", "stuck", "node lost")
"""Kinds of ends (`EndReason.kind`) that a restart may heal. After any other end, a user decides."""
_OF_SOFTWARE = ("user", "platform")
"""Owners of causes that return in each attempt."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a failed attempt. Two attempts have the same cause if `name` is equal."""

    name: str
    owner: str
    retry: bool


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that has ended. `end` is the kind of its end; `cause` is None unless it failed.

    `advanced`: it published a checkpoint of a later step than the step from which it began.
    """

    end: str
    cause: Cause | None = None
    advanced: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a restart, with its reason."""

    again: bool
    reason: str


def decide(attempts: Sequence[PastAttempt], settings: RestartSettings) -> Decision:
    """Return the decision after the last of the attempts, which failed. A user began the first of them.

    `enough_failures` of the newest failed attempts decide, with all attempts after them.
    """
    last = attempts[-1]
    if last.cause is None or last.end not in _RESTARTABLE:
        return Decision(again=False, reason=f"a restart does not help after the end {last.end!r}")
    if not last.cause.retry:
        return Decision(again=False, reason=f"a restart does not help: the cause is {last.cause.name}")
    advanced = max((place for place, attempt in enumerate(attempts) if attempt.advanced), default=0)
    since = [attempt.cause for attempt in attempts[advanced:] if attempt.cause is not None]
    restarts = len(since) - 1
    if restarts >= settings.max:
        return Decision(again=False, reason=f"{restarts} restarts brought no checkpoint forward")
    of_software = last.cause.owner in _OF_SOFTWARE
    causes = [attempt.cause for attempt in attempts if attempt.cause is not None] if of_software else since
    repeated = _count_last(causes, last.cause.name)
    if repeated > settings.same_cause + 1:
        return Decision(again=False, reason=f"{repeated} attempts in a row had the cause {last.cause.name}")
    return Decision(again=True, reason=f"restart {restarts + 1} of {settings.max}")


def enough_failures(settings: RestartSettings) -> int:
    """Return the number of the newest failed attempts that decide about a restart."""
    return max(settings.max + 1, settings.same_cause + 2)


def _count_last(causes: Sequence[Cause], name: str) -> int:
    """Return the number of equal causes at the end."""
    differing = (number for number, cause in enumerate(reversed(causes)) if cause.name != name)
    return next(differing, len(causes))
