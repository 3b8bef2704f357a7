"""Comparison of delivered results: each output file, artifact, parameter and metric of two runs gets one status.

Four rules decide, in this order: the tensors of files and artifacts; the results that the user names; if neither exist,
and the runs recorded no steps, all files and metrics with names that both runs have; with `strict`, each output file by
its bytes. All other items are listed. No rule depends on the look of a name or of a value.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from m5ws.config.result_patterns import KEYED, ResultPattern
from m5ws.records.reasons import Gap, ResultsHint
from m5ws.records.verdict import ComparedItem, ItemReason
from m5ws.reproduce.outputs import items as compared
from m5ws.reproduce.outputs.items import ComparedFile, Contents, Kind, Points

T = TypeVar("T", bound="Contents | Points")
_NAMED = 3


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one run by name: output files and artifacts, parameters and metrics."""

    files: Mapping[str, Contents] = {}
    artifacts: Mapping[str, Contents] = {}
    parameters: Mapping[str, Points] = {}
    metrics: Mapping[str, Points] = {}


class OutputRules(msgspec.Struct, frozen=True, kw_only=True):
    """The results that the user names. With `strict`, all output files are judged by their bytes."""

    results: tuple[ResultPattern, ...] = ()
    strict: bool = False


class OutputReport(msgspec.Struct, frozen=True, kw_only=True):
    """All items of a comparison, judged differences first. `evidence` counts the judged equal items by kind.

    `hint` is the remedy if there is one. `not_compared` has files that were not stored.
    """

    items: tuple[ComparedItem, ...] = ()
    evidence: Mapping[str, int] = {}
    hint: ResultsHint | None = None
    not_compared: tuple[Gap, ...] = ()

    @property
    def has_tensors(self) -> bool:
        """True if tensors of a file or an artifact are equal."""
        return "tensor files" in self.evidence

    @property
    def first(self) -> ComparedItem | None:
        """The first judged difference."""
        return next((item for item in self.items if item.judged and item.status == "differs"), None)

    @property
    def unsure(self) -> tuple[ComparedItem, ...]:
        """The judged items that could not be compared."""
        return tuple(item for item in self.items if item.judged and item.status == "not compared")


def compare(sides: tuple[Results, Results], rules: OutputRules, *, has_steps: bool) -> OutputReport:
    """Compare the results of two runs that ended by themselves. `has_steps`: steps or state of both were compared.

    Raises NotFound, CorruptObject.
    """
    pairs = _pair_names(rules.results, sides)
    old, new = sides[0], replace(sides[1], files={pairs.get(name, name): each for name, each in sides[1].files.items()})
    files = [compared.compare_file("file", *each) for each in _each(old.files, new.files, {})]
    artifacts = [compared.compare_file("artifact", *each) for each in _each(old.artifacts, new.artifacts, {})]
    metrics = [compared.compare_points("metric", *each) for each in _each(old.metrics, new.metrics, frozenset())]
    has_tensors = any(file.has_tensors for file in (*files, *artifacts))
    is_all = not (has_steps or rules.results or has_tensors)
    names = _find_named(rules.results, (old, new))

    def is_judged(file: ComparedFile) -> bool:
        return rules.strict or ("file", file.item.name) in names or (is_all and file.in_both)

    items = [
        *(file.by_bytes() if is_judged(file) else file.item for file in files),
        *(file.item for file in artifacts),
        *(_judge_metric(item, is_named=("metric", item.name) in names, is_all=is_all) for item in metrics),
        *(compared.compare_points("parameter", *each) for each in _each(old.parameters, new.parameters, frozenset())),
        *(item for pattern in rules.results for item in _compare_named(pattern, old, new)),
    ]
    renamed = {before: after for after, before in pairs.items()}
    items = [replace(item, replayed_as=renamed.get(item.name)) if item.kind == "file" else item for item in items]
    tensors = {(file.item.kind, file.item.name) for file in (*files, *artifacts) if file.equal_tensors}
    return OutputReport(
        items=tuple(sorted(items, key=_order)),
        evidence=_count_evidence(items, tensors),
        hint=_pairing_hint(items) or (_narrowing_hint(items) if is_all else None),
    )


def list_uncompared(sides: tuple[Results, Results], reason: ItemReason) -> OutputReport:
    """Return a report in which no result is compared, for one reason."""
    old, new = sides
    kinds: tuple[tuple[Kind, set[str]], ...] = (
        ("file", {*old.files, *new.files}),
        ("artifact", {*old.artifacts, *new.artifacts}),
        ("metric", {*old.metrics, *new.metrics}),
        ("parameter", {*old.parameters, *new.parameters}),
    )
    items = (
        ComparedItem(kind=kind, name=name, status="not compared", reason=reason)
        for kind, names in kinds
        for name in sorted(names)
    )
    return OutputReport(items=tuple(items))


def _each(old: Mapping[str, T], new: Mapping[str, T], nothing: T) -> Iterator[tuple[str, T, T]]:
    """Yield each name with its contents on both sides."""
    for name in sorted(old.keys() | new.keys()):
        yield name, old.get(name, nothing), new.get(name, nothing)


def _pair_names(patterns: Sequence[ResultPattern], sides: tuple[Results, Results]) -> dict[str, str]:
    """Return the original's names of files by the replay's names, where a pattern matches one file on each side."""
    pairs: dict[str, str] = {}
    for pattern in patterns:
        old, new = (pattern.find(side.files) if pattern.glob else [] for side in sides)
        if len(old) == len(new) == 1 and old != new and old[0] not in pairs.values():
            pairs.setdefault(new[0], old[0])
    return pairs


def _find_named(patterns: Sequence[ResultPattern], sides: tuple[Results, Results]) -> set[tuple[str, str]]:
    """Return kind and name of the files and metrics that the user names as a whole."""
    named = {("metric", pattern.metric) for pattern in patterns if pattern.metric is not None}
    for pattern in patterns:
        if pattern.glob and pattern.key is None:
            named |= {("file", name) for name in pattern.find({*sides[0].files, *sides[1].files})}
    return named


def _compare_named(pattern: ResultPattern, old: Results, new: Results) -> Iterator[ComparedItem]:
    """Yield the values that the user names by a key, and a pattern that matches nothing on both sides."""
    names = pattern.find({*old.files, *new.files}) if pattern.glob else []
    if not names and pattern.metric not in {*old.metrics, *new.metrics}:
        yield ComparedItem(
            kind="result", name=pattern.text, status="not compared", judged=True, reason="both runs lack it"
        )
    for name in names if pattern.key is not None else ():
        sides = (next(iter(side.files.get(name, {}).values()), None) for side in (old, new))
        yield compared.compare_key(name, pattern.key or "", *sides)


def _judge_metric(item: ComparedItem, *, is_named: bool, is_all: bool) -> ComparedItem:
    """Return the item of a metric. A named metric that one run lacks differs."""
    if is_named and item.status == "not compared":
        return compared.as_absent(item)
    return replace(item, judged=is_named or (is_all and item.status != "not compared"))


def _order(item: ComparedItem) -> tuple[bool, bool, bool]:
    """Return a sort key: judged differences come first, of tensors before others, and named values before files."""
    decides = item.judged and item.status == "differs"
    return not decides, not item.in_tensor, item.kind != "result"


def _count_evidence(items: Sequence[ComparedItem], tensors: Collection[tuple[str, str]]) -> dict[str, int]:
    """Return the numbers of files with equal tensors, and of other judged equal items by kind."""
    equal = (item for item in items if item.judged and item.status == "equal")
    counts = Counter(f"{item.kind}s" for item in equal if (item.kind, item.name) not in tensors)
    return dict(counts) | ({"tensor files": len(tensors)} if tensors else {})


def _pairing_hint(items: Sequence[ComparedItem]) -> ResultsHint | None:
    """Return the patterns that pair tensor files which have other names in the replay; None if there are none."""
    lone = [item for item in items if item.kind == "file" and item.judged and item.status == "not compared"]
    names = Counter(item.name.rpartition("/")[2] for item in lone)
    patterns = tuple(f"**/{name}" for name, count in names.items() if count == 2)
    return ResultsHint(purpose="pair", patterns=patterns) if patterns else None


def _narrowing_hint(items: Sequence[ComparedItem]) -> ResultsHint | None:
    """Return the patterns that judge less than all files and metrics; None if nothing differs, or nothing is equal."""
    judged = [item for item in items if item.judged and item.kind in ("file", "metric")]
    differ = [item for item in judged if item.status == "differs"]
    equal = [f"{'metric:' if item.kind == 'metric' else ''}{item.name}" for item in judged if item.status == "equal"]
    keyed = [f"{item.name}:KEY" for item in differ if item.name.endswith(KEYED)]
    patterns = (*equal[:_NAMED], *keyed[:_NAMED]) if differ else ()
    return ResultsHint(purpose="narrow", patterns=patterns) if patterns else None
