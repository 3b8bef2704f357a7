"""Comparison of one file, artifact, parameter, metric or key of two runs.

The status of a file is by its bytes. If it has tensors, these alone decide, and any other value in it is listed.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from m5ws.records.verdict import ComparedItem, ItemReason
from m5ws.reproduce.outputs import text_values
from m5ws.reproduce.outputs.content import Content, Place, first_place, first_tensor, first_value
from m5ws.reproduce.outputs.tensor_files import SUFFIXES, FileParts

Kind = Literal["file", "artifact", "parameter", "metric", "result"]
Contents = Mapping[str, Content]
"""Different contents of one name, by digest. A file has one; several MLflow runs of a script may log several."""
Points = frozenset[tuple[int, str]]
"""Values of a metric with their steps, or of a parameter at step 0, as exact text."""

PRESENT = "present"
_ONLY: dict[bool, ItemReason] = {True: "only the original has it", False: "only the replay has it"}


class ComparedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file or artifact, judged by its tensors alone. `in_both`: both runs have it.

    `has_tensors`: the file of one run has tensors. `equal_tensors`: both have some, and all are equal.
    """

    item: ComparedItem
    in_both: bool
    has_tensors: bool
    equal_tensors: bool = False

    def by_bytes(self) -> ComparedItem:
        """Return the item judged by its bytes. A file that one run lacks differs."""
        item = self.item
        if item.status != "not compared":
            return replace(item, judged=True)
        if not self.in_both:
            return as_absent(item)
        return replace(item, status="differs", judged=True, reason=None, problem=None)


def compare_file(kind: Kind, name: str, old: Contents, new: Contents) -> ComparedFile:
    """Compare the contents of a file or artifact. Raises NotFound, CorruptObject."""
    lone = [content for digest, content in old.items() if digest not in new]
    others = [content for digest, content in new.items() if digest not in old]
    if not lone and not others:
        has_tensors = any(content.has_tensors() for content in old.values())
        item = ComparedItem(kind=kind, name=name, status="equal", judged=has_tensors)
        return ComparedFile(item=item, in_both=True, has_tensors=has_tensors, equal_tensors=has_tensors)
    if lone and others:
        return _compare_pair(kind, name, lone, others)
    return _compare_lone(kind, name, [*lone, *others], is_original=bool(lone))


def compare_points(kind: Kind, name: str, old: Points, new: Points) -> ComparedItem:
    """Compare all values of a parameter or metric."""
    if old == new:
        return ComparedItem(kind=kind, name=name, status="equal")
    if not old or not new:
        return ComparedItem(kind=kind, name=name, status="not compared", reason=_ONLY[bool(old)])
    step = min(step for step, _ in old ^ new)
    before, after = (" ".join(sorted(text for at, text in side if at == step)) or None for side in (old, new))
    place = f"step {step}" if kind == "metric" else None
    return ComparedItem(kind=kind, name=name, status="differs", place=place, original=before, replayed=after)


def compare_key(name: str, key: str, old: Content | None, new: Content | None) -> ComparedItem:
    """Compare the values with a key in a file that the user names. It is always judged."""
    item = ComparedItem(kind="result", name=f"{name}:{key}", status="equal", judged=True)
    if old is None or new is None:
        return as_absent(replace(item, reason=_ONLY[old is not None]))
    try:
        before, after = (text_values.select(name, text_values.keys(name, each.read_text()), key) for each in (old, new))
    except (ValueError, MemoryError) as error:
        problem = f"{error}. Name the file without a key"
        return (
            item
            if old.digest == new.digest
            else replace(item, status="not compared", reason="unreadable", problem=problem)
        )
    if not before and not after:
        return replace(item, status="not compared", reason="both runs lack it")
    place = first_place(before, after)
    if place is None:
        return item
    return _at(item, place)


def as_absent(item: ComparedItem) -> ComparedItem:
    """Return a judged item that one run lacks as a difference."""
    original, replayed = (PRESENT, None) if item.reason == "only the original has it" else (None, PRESENT)
    return replace(item, status="differs", judged=True, reason=None, problem=None, original=original, replayed=replayed)


def _compare_lone(kind: Kind, name: str, contents: Sequence[Content], *, is_original: bool) -> ComparedFile:
    """Return the result for contents that one run alone has."""
    has_tensors = any(content.has_tensors() for content in contents)
    is_unread = name.endswith(SUFFIXES) and any(content.read_parts()[0] is None for content in contents)
    judged = has_tensors or is_unread
    item = ComparedItem(kind=kind, name=name, status="not compared", judged=judged, reason=_ONLY[is_original])
    return ComparedFile(item=item, in_both=False, has_tensors=has_tensors)


def _compare_pair(kind: Kind, name: str, old: Sequence[Content], new: Sequence[Content]) -> ComparedFile:
    """Compare contents with different bytes."""
    (before, why), (after, why_not) = _read(old), _read(new)
    if before.tensors or after.tensors:
        place = first_tensor(before.tensors, after.tensors)
        if place is not None:
            place = replace(place, key=f"tensor {place.key}" if place.key else "its only tensor")
            return _differing(kind, name, place, judged=True, in_tensor=True)
        rest = Place(key="bytes beside its values", original=old[0].digest, replayed=new[0].digest)
        place = first_place(before.values, after.values) or rest
        differing = _differing(kind, name, place, judged=False)
        return replace(differing, has_tensors=True, equal_tensors=True)
    if (why or why_not) and name.endswith(SUFFIXES):
        item = ComparedItem(
            kind=kind, name=name, status="not compared", judged=True, reason="bytes differ", problem=why or why_not
        )
        return ComparedFile(item=item, in_both=True, has_tensors=False)
    place = first_place(before.values, after.values) or first_value(name, old[0], new[0])
    return _differing(kind, name, place, judged=False)


def _differing(kind: Kind, name: str, place: Place, *, judged: bool, in_tensor: bool = False) -> ComparedFile:
    item = _at(ComparedItem(kind=kind, name=name, status="differs", judged=judged, in_tensor=in_tensor), place)
    return ComparedFile(item=item, in_both=True, has_tensors=in_tensor)


def _at(item: ComparedItem, place: Place) -> ComparedItem:
    """Return an item that differs at a place."""
    return replace(item, status="differs", place=place.key, original=place.original, replayed=place.replayed)


def _read(contents: Sequence[Content]) -> tuple[FileParts, str]:
    """Return the parts of contents, or none and the reason if one is of no format with tensors.

    Several contents have no order: they are numbered in the order of their tensors.
    """
    read = [content.read_parts() for content in contents]
    for parts, reason in read:
        if parts is None:
            return FileParts(tensors={}, values={}), reason
    found = sorted((parts for parts, _ in read if parts is not None), key=lambda parts: sorted(parts.tensors.items()))
    if len(found) == 1:
        return found[0], ""
    parts = FileParts(
        tensors={f"{number}.{key}": text for number, parts in enumerate(found) for key, text in parts.tensors.items()},
        values={f"{number}.{key}": text for number, parts in enumerate(found) for key, text in parts.values.items()},
    )
    return parts, ""
