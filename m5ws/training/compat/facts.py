"""A fact about the internals of a library, checked before a session uses it.

Invariant: a check imports nothing that the session does not import, and changes no state of the training.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from m5ws.errors import M5Error

Package = Literal["torch", "deepspeed"]

_ABSENT = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)


class UnsupportedVersion(M5Error):
    """A library lacks an internal that m5ws uses."""

    hint = "`m5ws doctor` lists the supported versions. Install a supported version, or a newer m5ws."


@dataclass(frozen=True)
class Fact:
    """`name` is the internal, as in the library's source. `holds` returns false, or raises, if it does not exist."""

    package: Package
    name: str
    holds: Callable[[], object]


def require(facts: Iterable[Fact]) -> None:
    """Raise UnsupportedVersion for the first fact that is false."""
    for fact in facts:
        try:
            reason = "" if fact.holds() else "it has another form"
        except _ABSENT as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            package = fact.package
            version = getattr(sys.modules.get(package), "__version__", "of an unknown version")
            raise UnsupportedVersion(f"{package} {version} lacks an internal that m5ws uses: {fact.name} ({reason})")
