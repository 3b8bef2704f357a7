"""Rules for the variables of libfabric and NCCL, by the versions of NCCL, libfabric and aws-ofi-nccl.

The rules are data, in rules.toml beside this file, each with its source. A rule needs evidence: with a version or fact
that is not known, its rule does not match. Of each variable, the first matching rule counts.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
from packaging.specifiers import SpecifierSet

from m5ws.records.environment import Observed

Effect = Literal["harmless", "slow", "hangs", "corrupts"]
_EFFECTS: Mapping[Effect, str] = {
    "harmless": "has no effect here",
    "slow": "slows the run down",
    "hangs": "can hang or abort the run",
    "corrupts": "can corrupt data",
}
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
HAZARDS = frozenset[Effect](("hangs", "corrupts"))


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A setting of a variable with a known effect.

    `value` has shell patterns of values in lower case, `unless` patterns of values that are excluded. `unset`: the rule
    is about a variable that is not set. `where` has a bound of versions (`>=1.7,<1.9`) or a shell pattern for each fact
    that must be known.
    """

    variable: str
    value: tuple[str, ...] = ("*",)
    unless: tuple[str, ...] = ()
    unset: bool = False
    where: dict[str, str]
    effect: Effect
    why: str
    remedy: str
    source: str

    def matches(self, facts: Mapping[str, str | None]) -> bool:
        """Return True if the facts of an environment have the setting, and the versions of the rule."""
        value = facts.get(f"variable.{self.variable}")
        if (value is None) != self.unset:
            return False
        is_set = any(fnmatchcase((value or "").lower(), pattern) for pattern in self.value)
        is_excluded = any(fnmatchcase((value or "").lower(), pattern) for pattern in self.unless)
        return is_set and not is_excluded and all(_holds(facts.get(name), each) for name, each in self.where.items())

    def describe(self, facts: Mapping[str, str | None]) -> str:
        """Return one line: the setting, its effect and reason, and the remedy."""
        value = "is not set: this" if self.unset else f"= {facts.get(f'variable.{self.variable}')}"
        warning = "warning: " if self.effect in HAZARDS else ""
        return f"{warning}{self.variable} {value} {_EFFECTS[self.effect]}: {self.why}. {self.remedy} ({self.source})"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules, in order of precedence."""
    return msgspec.toml.decode((resources.files("m5ws.environment.nccl") / "rules.toml").read_bytes(), type=_Table).rule


def matching(observed: Observed) -> tuple[Rule, ...]:
    """Return the first matching rule of each variable."""
    first: dict[str, Rule] = {}
    for rule in rules():
        if rule.variable not in first and rule.matches(observed.facts):
            first[rule.variable] = rule
    return tuple(first.values())


def is_in(version: str | None, bounds: str) -> bool:
    """Return True if the leading numbers of a version are in bounds; the numbers of `1.7.4-aws` are 1.7.4."""
    match = _NUMBERS.match(version or "")
    return match is not None and match[0] in SpecifierSet(bounds)


def _holds(value: str | None, condition: str) -> bool:
    if condition.startswith((">", "<")):
        return is_in(value, condition)
    return value is not None and fnmatchcase(value, condition)
