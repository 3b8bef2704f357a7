"""Patterns of `[causes]`: regular expressions of the library regex, which ends a search that takes too long."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from m5ws.errors import ConfigError

if TYPE_CHECKING:
    import regex

    Pattern: TypeAlias = regex.Pattern[str]


def compile_pattern(text: str) -> "Pattern":
    """Return a pattern for lines of logs. Raises ConfigError."""
    import regex

    try:
        return regex.compile(text, regex.MULTILINE)
    except regex.error as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}") from error


def describe_fault(texts: Sequence[str]) -> str | None:
    """Return the fault of the patterns of a rule, or None. A pattern that matches an empty line matches any log."""
    if not texts:
        return "no pattern is given"
    try:
        general = next((text for text in texts if compile_pattern(text).search("") is not None), None)
    except ConfigError as error:
        return str(error)
    return f"{general!r} matches an empty line, and so any log" if general is not None else None
