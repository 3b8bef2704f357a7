"""Drift: what differs between a pinned and an observed environment, and what that can do to bits.

The ratings are data, in drift_rules.toml beside this file, each with its reason and source. A name that no
rule knows is rated `can`: only evidence makes a difference harmless.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from m5ws.records import portable
from m5ws.records.environment import Declared, Observed
from m5ws.records.verdict import Change

Rating = Literal["cannot", "can", "does"]

_ORDER: tuple[Rating, ...] = ("cannot", "can", "does")
_ERROR = "torch.error"
"""Fact of an observation that could not start torch: facts that are missing beside it are unknown."""
_UNSET = "variable."
LOADED = "loaded."
"""How the names of facts begin that are paths of loaded libraries."""
_SAYS = {"cannot": "cannot change bits", "can": "can change bits", "does": "changes bits"}
_WANTED = {"cuda": "torch.cuda", "efa": "efa.driver", "ofi-nccl": "aws-ofi-nccl", "driver": "gpu.driver"}


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the table: what a difference in the names that match can do, why, and who says so."""

    part: str
    pattern: str
    rating: Rating
    why: str
    source: str


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact that says which version of a library is loaded, and the distributions (a pattern) that bring it."""

    loaded: str
    installed: str
    why: str
    source: str


class Library(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts (patterns of names) that count only in a process that has loaded a library (a fact `loaded.NAME`)."""

    library: str
    patterns: tuple[str, ...]
    why: str
    source: str


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Distributions (a pattern) that are used without being imported."""

    distribution: str
    why: str


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]
    pair: tuple[Pair, ...]
    library: tuple[Library, ...]
    program: tuple[Program, ...]


@cache
def _table() -> _Table:
    text = (resources.files("m5ws.environment") / "drift_rules.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Table)


def rules() -> tuple[Rule, ...]:
    """Return the table, in order of precedence."""
    return _table().rule


def pairs() -> tuple[Pair, ...]:
    """Return what is held against what to find a loaded library that is not the installed one."""
    return _table().pair


def library_of(name: str) -> str | None:
    """Return the fact `loaded.NAME` of the library without which a fact counts for nothing; None without one."""
    found = (one for one in _table().library if any(fnmatchcase(name, pattern) for pattern in one.patterns))
    return next((one.library for one in found), None)


def is_run(distribution: str) -> bool:
    """Return True if a distribution is used without being imported, as compilers are."""
    return any(fnmatchcase(distribution, one.distribution) for one in _table().program)


def rule(part: str, name: str) -> Rule:
    """Return the first rule for `name`; the table's last one matches everything."""
    return next(rule for rule in rules() if fnmatchcase(part, rule.part) and fnmatchcase(name, rule.pattern))


def _among(part: str, name: str) -> Rule | None:
    """Return the first rule that a part has for `name` itself, without those for all parts."""
    return next((rule for rule in rules() if rule.part == part and fnmatchcase(name, rule.pattern)), None)


def rated(part: str, name: str, old: str | None, new: str | None) -> Change:
    """Return a change with its rating from the table, and the rule's reason as its detail."""
    found = rule(part, name)
    return Change(part=part, name=name, old=old, new=new, rating=found.rating, detail=found.why)


def drift(pinned: Observed, observed: Observed) -> tuple[Change, ...]:
    """Return every difference between two observed environments, the gravest first, then by name.

    Distributions are named `distribution.NAME`, where they came from `origin.NAME`, and a library of which another
    version is loaded than is installed `loaded NAME`, unless that was so before. A fact that only one side recorded is
    not called a difference that changes bits: it is rated `can` at most, and its detail says what is missing.
    """
    facts = _facts(pinned.facts, observed.facts)
    installed = (
        rated("environment", f"distribution.{name}", old, new)
        for name, old, new in _different(pinned.distributions, observed.distributions)
    )
    return ordered((*facts, *installed, *_origins(pinned, observed), *_mistaken(pinned, observed)))


def ordered(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return changes, the gravest first, then by name."""
    return tuple(sorted(changes, key=lambda change: (-_ORDER.index(change.rating), change.name)))


def worst(changes: Sequence[Change]) -> Rating | None:
    """Return the gravest rating, None if there is no change."""
    return max((change.rating for change in changes), key=_ORDER.index, default=None)


def describe(change: Change) -> str:
    """Return a change as one line for people; a diff or list in its detail is left out."""
    detail = change.detail if change.detail and "\n" not in change.detail else None
    return f"{title(change)} ({_SAYS[change.rating]}{f': {detail}' if detail else ''})"


def says(rating: Rating) -> str:
    """Return a rating in words."""
    return _SAYS[rating]


def title(change: Change) -> str:
    """Return what changed, from what to what, without its rating."""
    return f"{change.part} {change.name}: {_value(change.old)} → {_value(change.new)}"


def unmet(declared: Declared, observed: Observed) -> tuple[Change, ...]:
    """Return what was declared and is not there: wanted versions and the container image.

    A wanted name is a fact's (`nccl`, `cuda`, `efa`, …) or a distribution's; `2.27` is met by any 2.27.x. The old
    value is the wanted one.
    """
    found = {name: _observed(name, observed) for name in declared.wanted}
    wrong = [rated("declared", name, declared.wanted[name], value) for name, value in found.items()
             if not _meets(declared.wanted[name], value)]  # fmt: skip
    image = observed.facts.get("container.image")
    if declared.image is not None and image != declared.image:
        wrong.append(rated("declared", "image", declared.image, image))
    return tuple(wrong)


def _facts(pinned: Mapping[str, str | None], observed: Mapping[str, str | None]) -> Iterator[Change]:
    alike = portable.is_kept(pinned, observed)
    failed = [facts for facts in (pinned, observed) if facts.get(_ERROR) is not None]
    for name, old, new in _different(pinned, observed):
        if name != _ERROR and any(facts.get(name) is None for facts in failed):
            continue  # unknown there, not absent
        change = rated("environment", name, old, new)
        if alike and (under := _among(portable.RULES, name)) is not None:
            change = msgspec.structs.replace(change, rating=under.rating, detail=under.why)
        known = name.startswith(_UNSET) or (name in pinned and name in observed)
        if known or name.startswith("editable.") or change.rating == "cannot":
            yield change
        else:
            rating = min(change.rating, "can", key=_ORDER.index)
            yield msgspec.structs.replace(change, rating=rating, detail="only one side recorded it")


def _origins(pinned: Observed, observed: Observed) -> Iterator[Change]:
    """Yield distributions of one version that came from other sources. Where nobody looked, nothing is known."""
    if pinned.origins is None or observed.origins is None:
        return
    old, new = ({name: str(origin) for name, origin in side.items()} for side in (pinned.origins, observed.origins))
    for name, before, after in _different(old, new):
        version = pinned.distributions.get(name)
        if version is not None and version == observed.distributions.get(name):
            index = "an index"
            yield rated("environment", f"origin.{name}", before or index, after or index)


def _mistaken(pinned: Observed, observed: Observed) -> Iterator[Change]:
    before = {change.name: change for change in mistaken(pinned)}
    for change in mistaken(observed):
        if change != before.get(change.name):
            yield change


def mistaken(observed: Observed) -> tuple[Change, ...]:
    """Return libraries of which another version is loaded than is installed: what pip says of them is not so.

    The old value is the installed version.
    """
    found = []
    for pair in _table().pair:
        installed, loaded = _installed(pair.installed, observed), observed.facts.get(pair.loaded)
        version = _plain(loaded) if loaded is not None else None
        if installed is not None and version is not None and not (_meets(version, installed)):
            found.append(
                msgspec.structs.replace(
                    rated("environment", f"loaded {pair.loaded}", installed, version), detail=pair.why
                )
            )
    return tuple(found)


def _installed(pattern: str, observed: Observed) -> str | None:
    """Return the version of the distribution that a pattern names; None without one, or where it names several."""
    named = [version for name, version in observed.distributions.items() if fnmatchcase(name, pattern)]
    return named[0] if len(named) == 1 else None


def _plain(version: str) -> str:
    """Return cuDNN's number as a version (91002 is 9.10.2; before 9, 8902 is 8.9.2), any other as it is."""
    if not version.isdigit() or len(version) not in (4, 5):
        return version
    number = int(version)
    major, rest = divmod(number, 10000) if number >= 90000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _different(
    old: Mapping[str, str | None], new: Mapping[str, str | None]
) -> Iterator[tuple[str, str | None, str | None]]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _observed(name: str, observed: Observed) -> str | None:
    fact = _WANTED.get(name, name)
    return observed.facts.get(fact) or observed.facts.get(f"{fact}.installed") or observed.distributions.get(name)


def _meets(wanted: str, value: str | None) -> bool:
    """Return whether a version is the wanted one or a more exact form of it (`13` and `13.0.1`, not `130`)."""
    if value is None:
        return False
    return value == wanted or (value.startswith(wanted) and value[len(wanted)] in ".+-_ ")


def _value(value: str | None) -> str:
    if value is None:
        return "absent"
    return value if len(value) <= 80 else f"{value[:77]}…"
