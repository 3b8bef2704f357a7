"""The output files of two runs, compared to the end: what differs, what of it is judged, and what could not be.

Equal digests are equal files. Others are compared by tensors, keys, columns or lines where their format has them, else
as bytes. Logs (`ignored`), and values that tell a run's own time or place (`surroundings`), are never judged; that they
differ is always listed.
"""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import ignored, paired_names, tensor_files, text_files
from m5ws.reproduce.outputs.surroundings import Surroundings
from m5ws.runs.outputs import outputs

_TEXT_BYTES = 2**26
_PLACE = "the path of the run"
_SHOWN = 200
_ELSEWHERE = "the run's place or time in names"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A judged difference: `name` is the file's path, with `:key` for what differs in it."""

    name: str
    original: str | None
    replayed: str | None
    tensor: bool = False


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

    @property
    def first(self) -> Difference | None:
        """The difference to name before all others: one of tensors, if there is one."""
        return min(self.differences, key=lambda found: not found.tensor, default=None)


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
    repo: Repository,
    sides: tuple[Digest | None, Digest | None],
    places: tuple[Surroundings, Surroundings],
    extra: Sequence[str] = (),
) -> Report:
    """Compare the output files of two runs, whose contents are `sides`. Raises NotFound, CorruptObject."""
    rules = (*ignored.DEFAULTS, *extra)
    old, new = (_entries(repo, side) for side in sides)
    earlier = paired_names.pair(old, new, places)
    equal, differences = Counter[str](), list[Difference]()
    logs, layout = list[str](), list[str]()
    clocks, elsewhere = dict[str, str](), dict[str, str]()
    for name in sorted(old.keys() | new.keys(), key=text_files.natural):
        one, other = old.get(name), new.get(name)
        if one is not None and other is not None and one.digest == other.digest:
            equal["files"] += 1
        elif ignored.is_file(name, rules):
            logs.append(name)
        elif one is None or other is None:
            digests = (side.digest if side is not None else None for side in (one, other))
            differences.append(Difference(name=name, original=next(digests), replayed=next(digests)))
        else:
            found = _compare(repo, name, (one, other), places, rules)
            equal["output tensors"] += found.tensors
            equal["output values"] += found.values
            if found.difference is not None:
                differences.append(found.difference)
            elif found.ignored:
                (clocks if found.clock else elsewhere)[name] = f"{name} ({outputs.listed(found.ignored)})"
            elif found.layout:
                layout.append(name)
    return Report(
        differences=tuple(differences),
        equal={kind: count for kind, count in equal.items() if count},
        unjudged=(*_hint(differences), *_words([*clocks.values(), *elsewhere.values()], layout, equal["files"], extra)),
        not_compared=(
            *((f"logs that differ: {outputs.listed(logs)}",) if logs else ()),
            *((f"files of earlier attempts, by their names: {outputs.listed(earlier)}",) if earlier else ()),
        ),
        clocks=tuple(clocks),
        places=tuple(elsewhere),
    )


def _hint(differences: Sequence[Difference]) -> Iterator[str]:
    """Yield a hint where values differ, and neither a tensor nor a whole file does."""
    if differences and all(":" in found.name and not found.tensor for found in differences):
        rules = ", ".join(f'"{found.name.replace("TIME", "*")}"' for found in differences[:3])
        yield f"no tensor differs; what is no result can be left out of verdicts: [run] ignore = [{rules}]"


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
    return {
        entry.name: entry for entry in trees.located(repo.objects, repo.locations, found.tree, found.packing).entries
    }


def _compare(
    repo: Repository,
    name: str,
    sides: tuple[Entry, Entry],
    places: tuple[Surroundings, Surroundings],
    rules: Sequence[str],
) -> _Found:
    """Compare two files that are not equal as bytes."""
    try:
        one, other = (_parts(repo, name, side) for side in sides)
    except tensor_files.UNREADABLE:
        if _differ_in_place(repo, sides):
            return _Found(ignored=[_PLACE])
        return _Found(difference=Difference(name=name, original=sides[0].digest, replayed=sides[1].digest))
    found = _Found(ignored=[])
    _compare_tensors(found, name, (one.tensors, other.tensors), places)
    values = [_keyed(part.values, place) for part, place in zip((one, other), places, strict=True)]
    for key in sorted(values[0].keys() | values[1].keys(), key=text_files.natural):
        before, after = values[0].get(key), values[1].get(key)
        if before == after:
            found.values += 1
            continue
        old, new = places[0].plain_value(before), places[1].plain_value(after)
        if places[0].placeless(before) == places[1].placeless(after):
            # All but the path is equal.
            found.values += 1
            found.ignored.append(key)
        elif old == new or ignored.is_key(name, key, rules):
            found.clock = True
            found.ignored.append(key)
        elif found.difference is None:
            found.difference = Difference(name=f"{name}:{key}", original=_short(old), replayed=_short(new))
    if found.difference is None and not found.ignored and _named_otherwise(one, other):
        found.ignored.append(_ELSEWHERE)
    found.layout = not found.ignored
    return found


def _short(text: str | None) -> str | None:
    """Return a value as a verdict has it: of a long one its beginning and a digest."""
    if text is None or len(text) <= _SHOWN:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{text[:_SHOWN]}… ({len(text):,} characters, digest {digest})"


def _compare_tensors(
    found: _Found, name: str, sides: tuple[dict[str, str], dict[str, str]], places: tuple[Surroundings, Surroundings]
) -> None:
    old, new = (_keyed(side, place) for side, place in zip(sides, places, strict=True))
    # A scalar, such as the best loss so far, is named if nothing larger differs.
    order = {key: ("[]" in value, text_files.natural(key)) for key, value in {**old, **new}.items()}
    for key in sorted(order, key=order.__getitem__):
        before, after = old.get(key), new.get(key)
        if before == after:
            found.tensors += 1
        elif found.difference is None:
            found.difference = Difference(name=f"{name}:{key}", original=before, replayed=after, tensor=True)


def _keyed(values: Mapping[str, str], place: Surroundings) -> Mapping[str, str]:
    """Return values by their names without time and place, or as they are named if two would have one name."""
    plain = {place.plain(name): value for name, value in values.items()}
    return plain if len(plain) == len(values) else values


def _named_otherwise(one: tensor_files.Parts, other: tensor_files.Parts) -> bool:
    return one.tensors.keys() != other.tensors.keys() or one.values.keys() != other.values.keys()


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
        return tensor_files.Parts(tensors={}, values=text_files.values(name, file.read()))
