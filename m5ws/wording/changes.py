"""Words of recorded changes between two runs or environments."""

from collections.abc import Sequence

from m5ws.records.verdict import Change

_CHARACTERS = 80
"""The longest value that is shown whole."""
_CONTEXT = 20
_LISTED = 8
_EFFECTS = {"cannot": "cannot change bits", "can": "can change bits", "does": "changes bits"}


def effect(rating: str) -> str:
    """Return a rating in words."""
    return _EFFECTS[rating]


def describe(change: Change, *, with_part: bool = True) -> str:
    """Return a change as one line, without a diff or list in its detail."""
    detail = change.detail if change.detail and "\n" not in change.detail else None
    return f"{title(change, with_part=with_part)} ({_EFFECTS[change.rating]}{f': {detail}' if detail else ''})"


def title(change: Change, *, with_part: bool = True) -> str:
    """Return the name of a change with its old and new value, without the rating."""
    old, new = values(change)
    return f"{f'{change.part} ' if with_part else ''}{change.name}: {old} → {new}"


def values(change: Change, characters: int = _CHARACTERS) -> tuple[str, str]:
    """Return the old and the new value in at most that many characters. Long values begin near their difference."""
    old, new = _from_difference(change.old, change.new, characters)
    return _value(old, characters), _value(new, characters)


def explain(changes: Sequence[Change], rewritten: str | None) -> str:
    """Return the changes that can alter bits, as the cause of a difference, or the edit of a ledger."""
    able = [change for change in changes if change.rating != "cannot"]
    if len(able) == 1:
        return f"{_name(able[0])} is the only recorded change that can alter bits"
    if able:
        return f"{len(able)} recorded changes can alter bits: {enumerate_able(able)}. `m5ws bisect` finds the cause"
    return rewritten or "no recorded change explains the difference"


def enumerate_able(changes: Sequence[Change]) -> str:
    """Return the changes that can alter bits, numbered; "" without one."""
    able = [change for change in changes if change.rating != "cannot"]
    names = [f"({number}) {_name(change)}" for number, change in enumerate(able[:_LISTED], 1)]
    return "; ".join(names) + (f"; and {len(able) - _LISTED} more" if len(able) > _LISTED else "")


def is_named_whole(change: Change) -> bool:
    """Return True if a reason contains both values of a change."""
    return change.rating != "cannot" and change.part != "data" and not _is_file(change)


def _name(change: Change) -> str:
    """Return a change in words. A changed file is named without its digests."""
    if _is_file(change):
        done = "added" if change.old is None else "removed" if change.new is None else "changed"
        return f"{change.part} {change.name} was {done}"
    if change.part == "data" and change.detail:
        return f"data {change.name} ({change.detail.splitlines()[0]})"
    return title(change)


def _is_file(change: Change) -> bool:
    """Return True if a change is of a file, whose old and new values are digests."""
    return change.part in ("code", "tokenizer", "read") and change.name not in {"probe ids", "commit"}


def _from_difference(old: str | None, new: str | None, characters: int) -> tuple[str | None, str | None]:
    """Return two values, without the common beginning of long values: otherwise only the beginning could be shown."""
    if old is None or new is None or max(len(old), len(new)) <= characters:
        return old, new
    place = next((place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, place - _CONTEXT)
    return (f"…{old[start:]}", f"…{new[start:]}") if start else (old, new)


def _value(value: str | None, characters: int) -> str:
    if value is None:
        return "absent"
    return value if len(value) <= characters else f"{value[: characters - 3]}…"
