"""Drift: differences between a pinned and an observed environment, rated by their effect on bits.

The ratings are data, in drift_rules.toml beside this file, each with its reason and source. A name without a rule is
rated `can`: a difference is harmless only with evidence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Literal, TypeVar

import msgspec

from m5ws.records import portable
from m5ws.records.environment import Declared, Observed, same_image
from m5ws.records.verdict import Change

Rating = Literal["cannot", "can", "does"]
T = TypeVar("T")

_ORDER: tuple[Rating, ...] = ("cannot", "can", "does")
VARIABLE = "variable."
"""Prefix of facts about environment variables."""
LOADED = "loaded."
"""Prefix of facts whose values are the paths of loaded libraries."""
OWNER = "owner."
"""Prefix of facts with the distribution that installed a loaded library, None if no distribution did."""
_IMAGE = "container.image"
_THREADS = f"{VARIABLE}OMP_NUM_THREADS"
_CONDITIONS: dict[str, Callable[[Mapping[str, str | None], Mapping[str, str | None]], bool]] = {
    "threads": lambda old, new: old.get(_THREADS) is not None and old.get(_THREADS) == new.get(_THREADS),
    portable.RULES: portable.is_kept,
}
"""Parts of the table that hold for two environments if their facts meet a condition, before the general rules."""
_WANTED = {"cuda": "torch.cuda", "efa": "efa.driver", "ofi-nccl": "aws-ofi-nccl", "driver": "gpu.driver"}


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule of the table: the rating of differences in matching names, its reason and its source."""

    part: str
    pattern: str
    rating: Rating
    why: str
    source: str


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact with the loaded version of a library, and the pattern of the distributions that install it."""

    loaded: str
    installed: str
    why: str
    source: str


class Library(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts (name patterns) that count only in a process that has loaded a library (a fact `loaded.NAME`)."""

    library: str
    patterns: tuple[str, ...]
    why: str
    source: str


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Distributions (a name pattern) that are used without being imported."""

    distribution: str
    why: str


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]
    pair: tuple[Pair, ...]
    library: tuple[Library, ...]
    program: tuple[Program, ...]


@cache
def table() -> _Table:
    """Return the ratings. The rules are in the order of their precedence."""
    return msgspec.toml.decode((resources.files("m5ws.environment") / "drift_rules.toml").read_bytes(), type=_Table)


def library_of(name: str) -> str | None:
    """Return the fact `loaded.NAME` of the library that a fact depends on, None without one."""
    libraries = (entry for entry in table().library if any(fnmatchcase(name, pattern) for pattern in entry.patterns))
    return next((entry.library for entry in libraries), None)


def is_run(distribution: str) -> bool:
    """Return True if a distribution is used without being imported, as compilers are."""
    return any(fnmatchcase(distribution, program.distribution) for program in table().program)


def rule(part: str, name: str) -> Rule:
    """Return the first rule for `name`. The last rule of the table matches every name."""
    return next(rule for rule in table().rule if fnmatchcase(part, rule.part) and fnmatchcase(name, rule.pattern))


def _part_rule(part: str, name: str) -> Rule | None:
    """Return the first rule of a part for `name`, without rules for all parts."""
    return next((rule for rule in table().rule if rule.part == part and fnmatchcase(name, rule.pattern)), None)


def rate(part: str, name: str, old: str | None, new: str | None) -> Change:
    """Return a change with its rating from the table, and the rule's reason as its detail."""
    matching = rule(part, name)
    return Change(part=part, name=name, old=old, new=new, rating=matching.rating, detail=matching.why)


def drift(pinned: Observed, observed: Observed) -> tuple[Change, ...]:
    """Return every difference between two observed environments, the gravest first, then by name.

    Versions are named `distribution.NAME`, origins `origin.NAME`. `loaded NAME` is a library whose loaded version is
    not the installed version, unless the pinned environment had the same difference. A fact that only one side recorded
    is rated `can` at most.
    """
    facts = _facts(pinned.facts, observed.facts)
    installed = (
        rate("environment", f"distribution.{name}", old, new)
        for name, old, new in different(pinned.distributions, observed.distributions)
    )
    return ordered((*facts, *installed, *_origins(pinned, observed), *_new_conflicts(pinned, observed)))


def ordered(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return changes, the gravest first, then by name."""
    return tuple(sorted(changes, key=lambda change: (-_ORDER.index(change.rating), change.name)))


def worst(changes: Sequence[Change]) -> Rating | None:
    """Return the gravest rating, None if there is no change."""
    return max((change.rating for change in changes), key=_ORDER.index, default=None)


def unmet(declared: Declared, observed: Observed) -> tuple[Change, ...]:
    """Return the declared versions and the declared container image that the observed environment does not have.

    A declared name is a fact's (`nccl`, `cuda`, `efa`, …) or a distribution's. Any 2.27.x meets `2.27`. The old value
    is the declared value.
    """
    values = {name: version_of(name, observed) for name in declared.wanted}
    wrong = [rate("declared", name, declared.wanted[name], value) for name, value in values.items()
             if not _meets(declared.wanted[name], value)]  # fmt: skip
    image = observed.facts.get(_IMAGE)
    if declared.image is not None and not same_image(declared.image, image) and not is_unverified(declared, observed):
        wrong.append(rate("declared", "image", declared.image, image))
    return tuple(wrong)


def is_unverified(declared: Declared, observed: Observed) -> bool:
    """Return True if only a variable names the declared image, and the runtime states no image.

    A variable that names another image, or contradicts the runtime, is not believed: then the image is unmet.
    """
    claim = observed.facts.get(f"{_IMAGE}.unverified")
    return observed.facts.get(_IMAGE) is None and same_image(declared.image, claim)


def _facts(pinned: Mapping[str, str | None], observed: Mapping[str, str | None]) -> Iterator[Change]:
    kept = [part for part, is_kept in _CONDITIONS.items() if is_kept(pinned, observed)]
    for name, old, new in different(pinned, observed):
        change = rate("environment", name, old, new)
        if name.startswith(_IMAGE) and same_image(pinned.get(_IMAGE), observed.get(_IMAGE)):
            change = msgspec.structs.replace(change, rating="cannot", detail="both images have the same digest")
        for under in (_part_rule(part, name) for part in kept):
            if under is not None:
                change = msgspec.structs.replace(change, rating=under.rating, detail=under.why)
        known = name.startswith(VARIABLE) or (name in pinned and name in observed)
        if known or name.startswith("editable.") or change.rating == "cannot":
            yield change
        else:
            rating = min(change.rating, "can", key=_ORDER.index)
            yield msgspec.structs.replace(change, rating=rating, detail="only one side recorded it")


def _origins(pinned: Observed, observed: Observed) -> Iterator[Change]:
    """Yield distributions of equal version and different origin. Nothing if one side did not observe origins."""
    if pinned.origins is None or observed.origins is None:
        return
    old, new = ({name: str(origin) for name, origin in side.items()} for side in (pinned.origins, observed.origins))
    for name, before, after in different(old, new):
        version = pinned.distributions.get(name)
        if version is not None and version == observed.distributions.get(name):
            index = "an index"
            yield rate("environment", f"origin.{name}", before or index, after or index)


def _new_conflicts(pinned: Observed, observed: Observed) -> Iterator[Change]:
    before = {change.name: change for change in conflicts(pinned)}
    for change in conflicts(observed):
        if change != before.get(change.name):
            yield change


def conflicts(observed: Observed) -> tuple[Change, ...]:
    """Return loaded libraries that are not the installed library, although pip lists a distribution of the library.

    The file of the loaded library decides. If a distribution installed the file, its version is compared. If none did,
    another copy takes precedence, whatever its version. The old value is the installed version.
    """
    return tuple(change for pair in table().pair if (change := _conflict(pair, observed)) is not None)


def _conflict(pair: Pair, observed: Observed) -> Change | None:
    """Return the difference between a loaded and an installed library, None without a difference.

    Public versions are compared: torch 2.14.1 on PyPI loads as `2.14.1+cu130`, and NVIDIA's builds differ in the local
    part too (https://packaging.python.org/en/latest/specifications/version-specifiers/#local-version-identifiers).
    """
    loaded, files = observed.facts.get(pair.loaded), observed.facts.get(f"{LOADED}{pair.loaded}")
    owner = observed.facts.get(f"{OWNER}{pair.loaded}")
    installed = {name: version for name, version in observed.distributions.items() if fnmatchcase(name, pair.installed)}
    if loaded is None or files is None or not installed:
        return None
    version = _plain(loaded)
    name = f"loaded {pair.loaded}"
    if owner is None:
        change = rate("environment", name, ", ".join(sorted(installed.values())), f"{version} in {files}")
    elif not _meets(_public(version), _public(installed[owner])):
        change = rate("environment", name, installed[owner], version)
    else:
        return None
    return msgspec.structs.replace(change, detail=pair.why)


def _public(version: str) -> str:
    """Return a version without its local part."""
    return version.partition("+")[0]


def _plain(version: str) -> str:
    """Return cuDNN's number as a version (91002 is 9.10.2; before 9, 8902 is 8.9.2), other text unchanged."""
    if not version.isdigit() or len(version) not in (4, 5):
        return version
    number = int(version)
    major, rest = divmod(number, 10000) if number >= 90000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def different(old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[tuple[str, T | None, T | None]]:
    """Yield the names whose values differ, with the values of both sides."""
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def version_of(name: str, observed: Observed) -> str | None:
    """Return the observed value of a declared name: a fact's, or a distribution's version."""
    fact = _WANTED.get(name, name)
    return observed.facts.get(fact) or observed.facts.get(f"{fact}.installed") or observed.distributions.get(name)


def _meets(wanted: str, value: str | None) -> bool:
    """Return True if a version is the wanted version or begins with it (`13` and `13.0.1`, but not `130`)."""
    if value is None:
        return False
    return value == wanted or (value.startswith(wanted) and value[len(wanted)] in ".+-_ ")
