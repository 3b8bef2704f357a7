"""The output files of two runs, compared to the end: what differs, what of it is judged, and what could not be.

Equal digests are equal files. Others are compared by tensors or by keys where their format has them, else as text or
bytes. Logs and values that tell the time are never judged (`ignored`); that they differ is always listed.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO

import msgspec

from m5ws.operations import ignored, outputs, tensor_files
from m5ws.records import Content, Digest, Entry
from m5ws.repository import Repository, trees

_TEXT_BYTES = 2**26
_PLACE = "the path of the run"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A judged difference: `name` is the file's path, with `:key` for what differs in it."""

    name: str
    original: str | None
    replayed: str | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The judged `differences`, the first of each file; counts of what is `equal`; the rest in words.

    `clocks` names the files that differ in nothing but values that are not judged, `places` those that differ in
    nothing but the run's own path.
    """

    differences: tuple[Difference, ...] = ()
    equal: dict[str, int] = {}
    unjudged: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


class _Found(msgspec.Struct):
    """What comparing one file shows: the first judged difference, and names of values that are not judged.

    `clock`: one of these is ignored by its key. `values` are equal, as far as they are judged.
    """

    difference: Difference | None = None
    ignored: list[str] = []
    clock: bool = False
    tensors: int = 0
    values: int = 0
    layout: bool = False


def compare(
    repo: Repository, sides: tuple[Digest | None, Digest | None], runs: tuple[str, str], extra: Sequence[str] = ()
) -> Report:
    """Compare the output files of two `runs`, whose contents are `sides`. Raises NotFound, CorruptObject."""
    rules = (*ignored.DEFAULTS, *extra)
    old, new = (_entries(repo, side) for side in sides)
    _pair_dated(old, new)
    equal, differences = Counter[str](), list[Difference]()
    logs, layout = list[str](), list[str]()
    clocks, places = dict[str, str](), dict[str, str]()
    for name in sorted(old.keys() | new.keys()):
        one, other = old.get(name), new.get(name)
        if one is not None and other is not None and one.digest == other.digest:
            equal["files"] += 1
        elif ignored.is_file(name, rules):
            logs.append(name)
        elif one is None or other is None:
            digests = (side.digest if side is not None else None for side in (one, other))
            differences.append(Difference(name=name, original=next(digests), replayed=next(digests)))
        else:
            found = _compare(repo, name, (one, other), runs, rules)
            equal["output tensors"] += found.tensors
            equal["output values"] += found.values
            if found.difference is not None:
                differences.append(found.difference)
            elif found.ignored:
                (clocks if found.clock else places)[name] = f"{name} ({outputs.listed(found.ignored)})"
            elif found.layout:
                layout.append(name)
    return Report(
        differences=tuple(differences),
        equal={kind: count for kind, count in equal.items() if count},
        unjudged=tuple(_words([*clocks.values(), *places.values()], layout, equal["files"], extra)),
        not_compared=(f"logs that differ: {outputs.listed(logs)}",) if logs else (),
        clocks=tuple(clocks),
        places=tuple(places),
    )


def _words(clocks: Sequence[str], layout: Sequence[str], equal: int, extra: Sequence[str]) -> Iterator[str]:
    if clocks:
        total = len(clocks) + len(layout) + equal
        yield f"{len(clocks)} of {total} files differ only in values that are not judged (time, speed, place):"
        yield from (f"  {line}" for line in outputs.listed(clocks, "\n").split("\n"))
    if layout:
        yield f"equal in every tensor and value, stored otherwise: {outputs.listed(layout)}"
    if extra:
        yield f"not judged by [run] ignore: {', '.join(extra)}"


def _entries(repo: Repository, content: Digest | None) -> dict[str, Entry]:
    if content is None:
        return {}
    found = repo.objects.get_record(content, Content)
    if found.tree is None:
        return {}
    return {entry.name: entry for entry in trees.located(repo.objects, found.tree, found.packing).entries}


def _pair_dated(old: dict[str, Entry], new: dict[str, Entry]) -> None:
    """Give files whose names differ in dates alone one name, where it is clear which belong together."""
    sides = [{name: ignored.undated(name) for name in one.keys() - other.keys()} for one, other in _both(old, new)]
    counts = [Counter(side.values()) for side in sides]
    for files, names in zip((old, new), sides, strict=True):
        for name, plain in names.items():
            if name != plain and plain not in files and all(count[plain] == 1 for count in counts):
                files[plain] = files.pop(name)


def _both(old: dict[str, Entry], new: dict[str, Entry]) -> list[tuple[dict[str, Entry], dict[str, Entry]]]:
    return [(old, new), (new, old)]


def _compare(
    repo: Repository, name: str, sides: tuple[Entry, Entry], runs: tuple[str, str], rules: Sequence[str]
) -> _Found:
    """Compare two files that are not equal as bytes."""
    try:
        one, other = (_parts(repo, name, side) for side in sides)
    except tensor_files.UNREADABLE:
        if _differ_in_place(repo, sides):
            return _Found(ignored=[_PLACE])
        return _Found(difference=Difference(name=name, original=sides[0].digest, replayed=sides[1].digest))
    found = _Found(ignored=[])
    for key in sorted(one.tensors.keys() | other.tensors.keys()):
        before, after = one.tensors.get(key), other.tensors.get(key)
        if before == after:
            found.tensors += 1
        elif found.difference is None:
            found.difference = Difference(name=f"{name}:{key}", original=before, replayed=after)
    for key in sorted(one.values.keys() | other.values.keys()):
        before, after = one.values.get(key), other.values.get(key)
        if before == after:
            found.values += 1
            continue
        placeless = [
            None if text is None else ignored.without_place(text, run)
            for text, run in zip((before, after), runs, strict=True)
        ]
        if placeless[0] == placeless[1]:
            # All but the path is equal.
            found.values += 1
            found.ignored.append(key or _PLACE)
        elif ignored.is_key(name, key, rules):
            found.clock = True
            found.ignored.append(key)
        elif found.difference is None:
            found.difference = Difference(name=f"{name}:{key}" if key else name, original=before, replayed=after)
    found.layout = not found.ignored
    return found


def _differ_in_place(repo: Repository, sides: tuple[Entry, Entry]) -> bool:
    """Return True if two files of no known format are equal but for the number of the run's work directory."""
    one, other = sides
    if one.link is not None or other.link is not None or one.size_bytes != other.size_bytes:
        return False
    if one.size_bytes > _TEXT_BYTES:
        return False
    before, after = (b"".join(repo.objects.read(part) for part in side.parts) for side in sides)
    return ignored.with_one_number(before) == ignored.with_one_number(after)


def _parts(repo: Repository, name: str, entry: Entry) -> tensor_files.Parts:
    """Return what a file holds. Raises one of `tensor_files.UNREADABLE`."""
    with tempfile.TemporaryFile() as file:
        if entry.link is not None:
            raise ValueError("a link")
        for part in entry.parts:
            file.write(repo.objects.read(part))
        file.seek(0)
        if name.endswith(tensor_files.SUFFIXES):
            return tensor_files.read(name, file)
        if entry.size_bytes > _TEXT_BYTES:
            raise ValueError("too long to be compared by keys")
        return tensor_files.Parts(tensors={}, values=_values(name, file))


def _values(name: str, file: IO[bytes]) -> dict[str, str]:
    text = file.read().decode()
    if name.endswith(".json"):
        document: object = json.loads(text, object_pairs_hook=tensor_files.unique)
    elif name.endswith((".jsonl", ".ndjson")):
        document = [json.loads(line, object_pairs_hook=tensor_files.unique) for line in text.splitlines()]
    elif name.endswith((".yaml", ".yml")):
        document = _yaml(text)
    else:
        return {"": text}
    return tensor_files.unique((key, tensor_files.text(value)) for key, value in tensor_files.flat(document))


def _yaml(text: str) -> object:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error
