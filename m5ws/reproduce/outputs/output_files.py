"""Comparison of all output files of two runs: judged differences, unjudged ones, and files that cannot be compared.

Files with equal digests are equal. Others are compared by members, tensors, keys, columns or lines if their format has
them, else as bytes. Logs (`ignored`), and values that depend on a run's own time or place (`surroundings`), are never
judged. Their differences are always listed.
"""

import csv
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

import msgspec

from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from m5ws.reproduce.outputs import (
    archives,
    ignored,
    logger_tables,
    numbered_folders,
    paired_names,
    tensor_files,
    text_files,
)
from m5ws.reproduce.outputs.surroundings import Surroundings
from m5ws.runs.outputs import outputs

_UNKNOWN_BYTES = 2**26
_PICKLE, _ARRAY = b"\x80", b"\x93NUMPY"
_BEGIN_BYTES = 2**10
_PLACE = "the path of the run"
_SHOWN = 200
_KEYS = 3
"""Values that are named of a file in which they are not judged."""
_ELSEWHERE = "the run's place or time in names"


class OutputDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A judged difference. `name` is the file's path, with `:key` for a value in the file.

    `as_bytes`: both runs have the file, in a format that is not read.
    """

    name: str
    original: str | None
    replayed: str | None
    tensor: bool = False
    as_bytes: bool = False


class OutputReport(msgspec.Struct, frozen=True, kw_only=True):
    """The judged `differences`, the first of each file; counts of `equal` values; the rest as text.

    `same` names the files with equal judged values, `clocks` those that differ in unjudged values alone, and `places`
    those that differ in the run's own path alone. `unpaired` names those whose pair is unknown. `has_tensors`: an equal
    file is of a format with tensors, or tensors in a file are equal.
    """

    differences: tuple[OutputDifference, ...] = ()
    equal: dict[str, int] = {}
    unjudged: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    has_tensors: bool = False

    @property
    def first(self) -> OutputDifference | None:
        """The difference to name before all others: one of tensors, else one of a format that is read."""
        return min(self.differences, key=lambda each: (not each.tensor, each.as_bytes), default=None)


class _FileResult(msgspec.Struct):
    """Result of the comparison of one file: the first judged difference, and the names of unjudged values.

    `clock`: one of these is ignored by its key. `values` counts the equal ones.
    """

    difference: OutputDifference | None = None
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
) -> OutputReport:
    """Compare the output files of two runs, with the contents `sides`. Raises NotFound, CorruptObject.

    If one of them was resumed, values that begin again with each attempt are not judged.
    """
    was_resumed = max(place.attempts for place in places) > 1
    old, new = (_entries(repo, side) for side in sides)
    folders = set[str]()
    if places[0].attempts != places[1].attempts:
        folders, places = numbered_folders.find((old, new), places)
    rules = (*ignored.DEFAULTS, *(ignored.restarted((*old, *new)) if was_resumed else ()), *extra)
    removed = paired_names.pair(old, new, places)
    unpaired = [name for name in removed.unpaired if not ignored.is_file(name, extra)]
    equal, differences = Counter[str](), list[OutputDifference]()
    logs, layout = list[str](), list[str]()
    clocks, elsewhere = dict[str, str](), dict[str, str]()
    has_tensors, same = False, list[str]()
    for name in sorted(old.keys() | new.keys(), key=text_files.natural):
        before, after = old.get(name), new.get(name)
        if before is not None and after is not None and before.digest == after.digest:
            equal["files"] += 1
            has_tensors = has_tensors or _has_weights(repo, name, before)
            same.append(name)
        elif ignored.is_file(name, extra):
            logs.append(name)
        elif (before is None or after is None) and _is_of_an_earlier_attempt(name, (before, after), places):
            removed.earlier.append(name)
        elif before is None or after is None:
            digests = (side.digest if side is not None else None for side in (before, after))
            differences.append(OutputDifference(name=name, original=next(digests), replayed=next(digests)))
        else:
            result = _compare(repo, name, (before, after), places, rules)
            folder = logger_tables.folder_of(name, folders)
            if result.difference is not None and folder is not None:
                both = (before, after)
                result = _compare_last_rows(repo, name, folder, both, places, rules, removed.earlier) or result
            equal["output tensors"] += result.tensors
            has_tensors = has_tensors or (result.tensors > 0 and _has_weights(repo, name, before))
            same += [name] if result.tensors or result.values else []
            equal["output values"] += result.values
            if result.difference is not None:
                differences.append(result.difference)
            elif result.ignored:
                (clocks if result.clock else elsewhere)[name] = f"{name} ({outputs.listed(result.ignored, most=_KEYS)})"
            elif result.layout:
                layout.append(name)
    # Of pairs that are guessed, only equal ones count.
    unpaired += [difference.name for difference in differences if removed.is_guess(difference.name)]
    differences = [difference for difference in differences if not removed.is_guess(difference.name)]
    return OutputReport(
        differences=tuple(differences),
        equal={kind: count for kind, count in equal.items() if count},
        unjudged=(*_hint(differences), *_words([*clocks.values(), *elsewhere.values()], layout, equal["files"], extra)),
        not_compared=(
            *((f"logs that differ: {outputs.listed(logs)}",) if logs else ()),
            *((f"files of earlier attempts: {outputs.listed(removed.earlier)}",) if removed.earlier else ()),
            *((f"files whose pairs are unknown: {outputs.listed(unpaired)}",) if unpaired else ()),
        ),
        clocks=tuple(clocks),
        places=tuple(elsewhere),
        unpaired=tuple(unpaired),
        same=tuple(same),
        has_tensors=has_tensors,
    )


def _is_of_an_earlier_attempt(
    name: str, sides: tuple[Entry | None, Entry | None], places: tuple[Surroundings, Surroundings]
) -> bool:
    """Return True if a file that one run alone has is of a checkpoint that an earlier attempt of it left.

    A framework removes older checkpoints, and after a resume not always those of the attempt before. Any other file is
    a result, whoever wrote it.
    """
    return any(map(ignored.is_weights, name.split("/"))) and any(
        side is not None and (name, side.digest) in place.earlier for side, place in zip(sides, places, strict=True)
    )


def _hint(differences: Sequence[OutputDifference]) -> Iterator[str]:
    """Yield a hint if values or files of unknown formats differ, and no tensor does."""
    opaque = [difference.name for difference in differences if difference.as_bytes]
    if not differences or not all(":" in each.name or each.as_bytes for each in differences):
        return
    if any(difference.tensor for difference in differences):
        return
    rules = ", ".join(f'"{difference.name.replace("TIME", "*")}"' for difference in differences[:3])
    known = f"compared as bytes: {outputs.listed(opaque)}" if opaque else "no tensor differs"
    yield f"{known}. To leave files and values that are no results out of verdicts: [run] ignore = [{rules}]"


def _words(clocks: Sequence[str], layout: Sequence[str], equal: int, extra: Sequence[str]) -> Iterator[str]:
    if clocks:
        total = len(clocks) + len(layout) + equal
        yield f"{len(clocks)} of {total} files differ only in values that are not judged (time, place, restart):"
        yield from (f"  {line}" for line in outputs.listed(clocks, "\n").split("\n"))
    if layout:
        yield f"equal in every tensor and value, with a different layout: {outputs.listed(layout)}"
    if extra:
        yield f"not judged by [run] ignore: {', '.join(extra)}"


def _entries(repo: Repository, content: Digest | None) -> dict[str, Entry]:
    if content is None:
        return {}
    record = repo.objects.get_record(content, Content)
    if record.tree is None:
        return {}
    tree = trees.located(repo.objects, repo.locations, record.tree, record.packing)
    return {entry.name: entry for entry in tree.entries}


def _compare(
    repo: Repository,
    name: str,
    sides: tuple[Entry, Entry],
    places: tuple[Surroundings, Surroundings],
    rules: Sequence[str],
) -> _FileResult:
    """Compare two files with different bytes."""
    try:
        old_parts, new_parts = (_parts(repo, name, side) for side in sides)
    except tensor_files.UNREADABLE:
        if _differ_in_place(repo, sides):
            return _FileResult(ignored=[_PLACE])
        original, replayed = (side.digest for side in sides)
        difference = OutputDifference(name=name, original=original, replayed=replayed, as_bytes=True)
        return _FileResult(difference=difference)
    result = _FileResult(ignored=[])
    _compare_tensors(result, name, (old_parts.tensors, new_parts.tensors), places)
    values = [_keyed(part.values, place) for part, place in zip((old_parts, new_parts), places, strict=True)]
    for key in sorted(values[0].keys() | values[1].keys(), key=text_files.natural):
        before, after = values[0].get(key), values[1].get(key)
        if before == after:
            result.values += 1
            continue
        old, new = places[0].plain_value(before), places[1].plain_value(after)
        if places[0].placeless(before) == places[1].placeless(after):
            # All but the path is equal.
            result.values += 1
            result.ignored.append(key)
        elif old == new or ignored.is_key(name, key, rules):
            result.clock = True
            result.ignored.append(key)
        elif result.difference is None:
            result.difference = OutputDifference(name=f"{name}:{key}", original=_short(old), replayed=_short(new))
    if result.difference is None and not result.ignored and _named_otherwise(old_parts, new_parts):
        result.ignored.append(_ELSEWHERE)
    result.layout = not result.ignored
    return result


def _short(text: str | None) -> str | None:
    """Return a value for a verdict. A long value is cut, and gets a digest."""
    if text is None or len(text) <= _SHOWN:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{text[:_SHOWN]}… ({len(text):,} characters, digest {digest})"


def _compare_tensors(
    result: _FileResult,
    name: str,
    sides: tuple[dict[str, str], dict[str, str]],
    places: tuple[Surroundings, Surroundings],
) -> None:
    old, new = (_keyed(side, place) for side, place in zip(sides, places, strict=True))
    # A scalar, such as the best loss so far, is named if nothing larger differs.
    order = {key: ("[]" in value, text_files.natural(key)) for key, value in {**old, **new}.items()}
    for key in sorted(order, key=order.__getitem__):
        before, after = old.get(key), new.get(key)
        if before == after:
            result.tensors += 1
        elif result.difference is None:
            result.difference = OutputDifference(name=f"{name}:{key}", original=before, replayed=after, tensor=True)


def _keyed(values: Mapping[str, str], place: Surroundings) -> Mapping[str, str]:
    """Return values by their names without time and place. If two names become equal, all names stay as they are."""
    plain = {place.plain_key(name): value for name, value in values.items()}
    return plain if len(plain) == len(values) else values


def _named_otherwise(old: tensor_files.FileParts, new: tensor_files.FileParts) -> bool:
    return old.tensors.keys() != new.tensors.keys() or old.values.keys() != new.values.keys()


def _differ_in_place(repo: Repository, sides: tuple[Entry, Entry]) -> bool:
    """Return True if two files of unknown format differ in the number of the run's work directory alone."""
    old, new = sides
    if old.link is not None or new.link is not None or old.size_bytes != new.size_bytes:
        return False
    if old.size_bytes > _UNKNOWN_BYTES:
        return False
    before, after = (b"".join(repo.objects.read(part) for part in side.parts) for side in sides)
    return ignored.with_one_number(before) == ignored.with_one_number(after)


def _compare_last_rows(
    repo: Repository,
    name: str,
    folder: str,
    sides: tuple[Entry, Entry],
    places: tuple[Surroundings, Surroundings],
    rules: Sequence[str],
    superseded: Sequence[str],
) -> _FileResult | None:
    """Compare the last rows of two tables of Lightning's CSVLogger, of which one is of the resumed run's last attempt.

    Return None if that one has no rows, or more than the other, or if one cannot be read. Return None too if no attempt
    was interrupted in that table: if the last one took the first step, or if it has all rows and only other folders
    have files of earlier attempts. A table that an earlier attempt left is whole, unless a still earlier one had a
    table too, which is `superseded`.

    The table of the last attempt has the columns of the values that were logged in it. Columns that it lacks are empty
    in these rows. A mean over an epoch (`loss_epoch` in other rows than `loss_step`) begins again with the attempt.
    """
    resumed = 0 if places[0].attempts > places[1].attempts else 1
    place = places[resumed]
    begin = place.plain(folder)
    left = {digest for path, digest in place.earlier if place.plain(path).startswith(begin)}
    is_second = any(path.endswith("/metrics.csv") and place.plain(path).startswith(begin) for path in superseded)
    if place.begins_anew or (sides[resumed].digest in left and not is_second):
        return None
    try:
        tables = [logger_tables.read(repo, side) for side in sides]
    except (csv.Error, ValueError):
        return None
    count = len(tables[resumed])
    others = len(tables[1 - resumed])
    if not 0 < count <= others or (count == others and place.earlier and not left):
        return None
    result = _FileResult(ignored=["rows of earlier attempts"], clock=True)
    first_epoch = tables[0][-count].get("epoch")
    means = logger_tables.means([row for table in tables for row in table])
    for row in range(-count, 0):
        before, after = (table[row] for table in tables)
        number = len(tables[0]) + row + 1
        for column in dict.fromkeys([*before, *after]):
            old, new = before.get(column), after.get(column)
            if old == new:
                result.values += 1
            elif (
                (column in means and first_epoch is not None and before.get("epoch") == first_epoch)
                or ignored.is_key(name, f"{number}.{column}", rules)
                or places[0].plain_value(old) == places[1].plain_value(new)
            ):
                result.ignored.append(f"{number}.{column}")
            elif result.difference is None:
                result.difference = OutputDifference(name=f"{name}:{number}.{column}", original=old, replayed=new)
    return result


def _has_weights(repo: Repository, name: str, entry: Entry) -> bool:
    """Return True if a file may have weights: of a format that is read, if it has floating-point numbers.

    A large file is not read: its first bytes show a format. Files of other formats count by their names.
    """
    plain = name.removesuffix(".gz")
    is_archive = plain.endswith(archives.SUFFIXES)
    if entry.link is not None or not (ignored.is_weights(name) or is_archive):
        return False
    if not is_archive and not plain.endswith(tensor_files.SUFFIXES):
        return True
    if entry.size_bytes > _UNKNOWN_BYTES:
        return name != plain or is_archive or _may_begin_weights(repo, entry)
    try:
        with _opened(repo, entry) as file:
            return archives.has_floats(name, file)
    except tensor_files.UNREADABLE:
        return False  # Such as token ids in a .bin file.


def _may_begin_weights(repo: Repository, entry: Entry) -> bool:
    begin = bytes(repo.objects.read(entry.parts[0]))[:_BEGIN_BYTES]
    if begin.startswith(_ARRAY):
        return tensor_files.is_float_array(begin)
    return begin.startswith((_PICKLE, b"PK\x03\x04", tensor_files.LEGACY)) or begin[8:9] == b"{"


def _parts(repo: Repository, name: str, entry: Entry) -> tensor_files.FileParts:
    """Return the parts of a file. Raises one of `tensor_files.UNREADABLE`."""
    if entry.link is not None:
        raise ValueError("a link")
    with _opened(repo, entry) as file:
        return archives.read(name, file)


@contextmanager
def _opened(repo: Repository, entry: Entry) -> Iterator[IO[bytes]]:
    """Yield the content of a file."""
    with tempfile.TemporaryFile() as file:
        for part in entry.parts:
            file.write(repo.objects.read(part))
        file.seek(0)
        yield file
