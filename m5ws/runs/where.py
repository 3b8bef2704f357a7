"""Conditions on runs: the language of `m5ws ls --where`.

    condition  = term { "or" term }          term = factor { "and" factor }
    factor     = "not" factor | "(" condition ")" | comparison
    comparison = name ("<" | "<=" | ">" | ">=" | "=" | "==" | "!=" | "~") value

A name is a word, or any text in backquotes. A value is a number, text in quotes, or a word. `~` is true if the text
contains the value, whatever the case. A comparison with a value that a run does not have is false.
"""

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from m5ws.errors import UsageError

_MOST_NESTED = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<operator><=|>=|==|!=|<|>|=|~)|(?P<bracket>[()])|(?P<quoted>"[^"]*"|'[^']*')|(?P<name>`[^`]+`)"""
    r"""|(?P<word>[^\s()<>=!~"'`]+))"""
)
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}

Known = str | float | None
"""The value of a run under a name; None if the run has none."""


class NotRead:
    """The value was not read yet."""


NOT_READ = NotRead()
Lookup = Callable[[str], "Known | NotRead"]


class InvalidCondition(UsageError):
    """A condition that cannot be understood. The message points at the place."""


class Comparison(msgspec.Struct, frozen=True):
    """One comparison; `at` is the place of its name in the text."""

    name: str
    operator: str
    value: str | float
    at: int


class Not(msgspec.Struct, frozen=True):
    """The opposite of a condition."""

    of: "Condition"


class Junction(msgspec.Struct, frozen=True):
    """Conditions of which all, or any, are true."""

    kind: Literal["and", "or"]
    parts: "tuple[Condition, ...]"


Condition = Comparison | Not | Junction


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    at: int


def invalid(text: str, at: int, message: str) -> InvalidCondition:
    """Return the error about a place in a condition."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return InvalidCondition(
        f"--where: {message}\n  {line}\n  {' ' * at}^",
        hint="A condition is such as: loss<3 and lr>1e-4 and not state=failed. `m5ws ls --help` lists the names.",
    )


def parse(text: str) -> Condition:
    """Return the condition in a text. Raises InvalidCondition."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._tokenise())
        self._next = 0

    def parse(self) -> Condition:
        condition = self._junction("or", 0)
        if (token := self._peek()) is not None:
            raise invalid(self._text, token.at, "expected `and`, `or` or the end")
        return condition

    def _tokenise(self) -> Iterator[_Token]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                begin = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                raise invalid(self._text, begin, "unexpected character, or a quote without its end")
            yield _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
            at = match.end()

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, expected: str, *kinds: str) -> _Token:
        token = self._peek()
        if token is None or token.kind not in kinds:
            raise invalid(self._text, token.at if token else len(self._text.rstrip()), f"expected {expected}")
        self._next += 1
        return token

    def _accept(self, text: str) -> bool:
        token = self._peek()
        if token is None or token.kind not in ("word", "bracket") or token.text.lower() != text:
            return False
        self._next += 1
        return True

    def _junction(self, kind: Literal["and", "or"], depth: int) -> Condition:
        parts = [self._part(kind, depth)]
        while self._accept(kind):
            parts.append(self._part(kind, depth))
        return parts[0] if len(parts) == 1 else Junction(kind, tuple(parts))

    def _part(self, kind: Literal["and", "or"], depth: int) -> Condition:
        return self._junction("and", depth) if kind == "or" else self._factor(depth)

    def _factor(self, depth: int) -> Condition:
        token = self._peek()
        if token is not None and depth > _MOST_NESTED:
            raise invalid(self._text, token.at, f"more than {_MOST_NESTED} conditions inside each other")
        if self._accept("not"):
            return Not(self._factor(depth + 1))
        if self._accept("("):
            condition = self._junction("or", depth + 1)
            if not self._accept(")"):
                token = self._peek()
                raise invalid(self._text, token.at if token else len(self._text.rstrip()), "expected `)`")
            return condition
        return self._comparison()

    def _comparison(self) -> Comparison:
        name = self._take("a name", "word", "name")
        if name.text.lower() in ("and", "or"):
            raise invalid(self._text, name.at, "expected a name")
        relation = self._take("one of < <= > >= = != ~", "operator")
        value = self._take("a value", "word", "quoted", "name")
        text = value.text if value.kind == "word" else value.text[1:-1]
        literal = text if value.kind != "word" or relation.text == "~" else _literal(text)
        return Comparison(name.text.strip("`"), relation.text.replace("==", "="), literal, name.at)


def _literal(word: str) -> str | float:
    """Return the number that a word is, with a duration in seconds; else the word."""
    if match := _DURATION.fullmatch(word):
        return float(match[1]) * _UNITS_S[match[2]]
    number = _number(word)
    return word if number is None else number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def names(condition: Condition) -> Iterator[Comparison]:
    """Yield all comparisons of a condition, in their order."""
    if isinstance(condition, Comparison):
        yield condition
    elif isinstance(condition, Not):
        yield from names(condition.of)
    else:
        for part in condition.parts:
            yield from names(part)


def evaluate(condition: Condition, lookup: Lookup) -> bool | None:
    """Return True if a run meets a condition; None if that depends on values that were not read."""
    if isinstance(condition, Not):
        result = evaluate(condition.of, lookup)
        return None if result is None else not result
    if isinstance(condition, Junction):
        # The first value that decides: False for `and`, True for `or`.
        decisive = condition.kind == "or"
        results = [evaluate(part, lookup) for part in condition.parts]
        return decisive if decisive in results else None if None in results else not decisive
    value = lookup(condition.name)
    return None if isinstance(value, NotRead) else _holds(value, condition.operator, condition.value)


def _holds(value: Known, relation: str, wanted: str | float) -> bool:
    if value is None:
        return False
    if relation == "~":
        return str(wanted).casefold() in str(value).casefold()
    if isinstance(wanted, str):
        return _ordered(str(value), relation, wanted)
    number = _number(value) if isinstance(value, str) else value
    return relation == "!=" if number is None else _ordered(number, relation, wanted)


def _ordered(value: str | float, relation: str, wanted: str | float) -> bool:
    """Return True if two values of one type compare as an operator requires."""
    return bool(_OPERATORS[relation](value, wanted))
