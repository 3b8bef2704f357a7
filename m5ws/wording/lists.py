"""Lists and numbers as text."""

from collections.abc import Sequence

_LISTED = 20


def list_names(names: Sequence[str], separator: str = ", ", most: int = _LISTED) -> str:
    """Return the first `most` names, and the number of others."""
    more = f"{separator}and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def count(number: int, word: str) -> str:
    """Return a number with its noun."""
    plural = word.replace(" with", "s with") if " with" in word else f"{word}s"
    return f"{number:,} {word if number == 1 else plural}"


def capitalise(text: str) -> str:
    """Return a clause as the begin of a sentence."""
    return text[:1].upper() + text[1:]
