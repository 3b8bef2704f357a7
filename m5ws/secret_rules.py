"""The rules of secret_rules.toml, and the tests of a value that they need.

A rule prefers to miss a rare secret over reporting ordinary code. Rules are loaded on first use, because a snapshot of
unchanged files reads no file.
"""

import functools
import math
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

HARMLESS_NAME = re.compile(
    r"(?i)tokenizers?|_tokens?_per|max_tokens|keyboard|monkey|public|(?:key|token|secret|credentials?)_?(?:id|name|arn|ur[il])"
    r"|(?:next|page|pagination|continuation|change|request|purchase|action|grant|verification|update|csrf|xsrf|sync)_?token"
)
_DIGIT = re.compile(rb"\d")
_LETTER = re.compile(rb"[A-Za-z]")
_CHANGES = re.compile(rb"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")
"""Random letters and digits alternate about every fourth character; readable values once or twice."""
_IDENTIFIER = re.compile(rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9a-f]{16,31}")
_READABLE = re.compile(rb"(?i)passw(?:or)?d|secret|tiger|sensitive")
_KINDS = tuple(map(re.compile, (rb"[a-z]", rb"[A-Z]", rb"[0-9]", rb"[^A-Za-z0-9]")))
_WELL_KNOWN = (b"eby8vdm02xnocqflquwjpllm", b"eyjhbgcioijiuzi1niisinr5cci6ikpxvcj9")
"""Azurite's account key, and the header of a JSON web token without its content."""
_BY_NAME_ALONE, _PASSWORD = "key-of-a-service", "password"
"""Rules for values without a form of their own. These values must look random as well."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret with a known form.

    If there are `keywords` (lower case), a text without any of them is not searched. The secret is the first group of
    `pattern`, or else the whole match. `entropy` is its minimum, in bits per character.
    """

    id: str
    pattern: str
    keywords: tuple[str, ...]
    what: str = ""
    entropy: float = 0.0

    def secrets(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield each secret in `data` with its position."""
        for match in _compiled(self.pattern).finditer(data):
            group = 1 if match.re.groups and match[1] else 0
            if self.accepts(match[group]):
                yield match[group], match.start(group)

    def accepts(self, secret: bytes) -> bool:
        if self.id == _PASSWORD and not _is_password(secret):
            return False
        return not _is_example(secret) and _entropy(secret) >= self.entropy

    @property
    def shown(self) -> str:
        return self.what or f"a secret ({self.id})"


class NamedSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that is a secret because of the name before it. Both patterns must match completely."""

    id: str
    name: str
    value: str
    what: str = ""
    entropy: float = 0.0

    def matches(self, name: bytes, value: bytes) -> bool:
        return (
            _compiled(self.name).search(name) is not None
            and _compiled(self.value).fullmatch(value) is not None
            and _entropy(value) >= self.entropy
            and (self.id != _BY_NAME_ALONE or _is_random(name, value))
        )

    @property
    def shown(self) -> str:
        return self.what or f"a secret ({self.id})"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of secret_rules.toml.

    `token` lists secrets without spaces or quotes, searched for in words. `text` lists secrets with spaces or quotes,
    searched for in the whole file. `named` lists values that are secret because of the name before them. A value that
    contains one of `stopwords` is readable text.
    """

    token: tuple[Rule, ...]
    text: tuple[Rule, ...]
    named: tuple[NamedSecret, ...]
    stopwords: str


@functools.cache
def load() -> Rules:
    """Return all rules."""
    from importlib import resources

    return msgspec.toml.decode((resources.files("m5ws") / "secret_rules.toml").read_bytes(), type=Rules)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())


@functools.cache
def _stopwords() -> re.Pattern[bytes]:
    return re.compile(b"|".join(word.encode() for word in load().stopwords.split()))


@functools.cache
def _names() -> re.Pattern[bytes]:
    return re.compile(b"|".join(rule.name.encode() for rule in load().named))


def select(kind: Literal["token", "text"], text: bytes) -> list[Rule]:
    """Return the rules of a kind that have a keyword in the text."""
    lower = text.lower()
    present = [word for word in _keywords(kind) if word in lower]
    wanted = {rule.id: rule for word in present for rule in _keywords(kind)[word]}
    return [rule for rule in getattr(load(), kind) if not rule.keywords or rule.id in wanted]


def select_named(name: bytes, value: bytes) -> NamedSecret | None:
    """Return the rule by which the `name` before a value makes the value a secret; None without such a rule."""
    if not _names().search(name) or _is_example(value):
        return None
    return next((rule for rule in load().named if rule.matches(name, value)), None)


@functools.cache
def _keywords(kind: str) -> dict[bytes, list[Rule]]:
    """Return the rules of a kind, grouped by keyword."""
    rules = dict[bytes, list[Rule]]()
    for rule in getattr(load(), kind):
        for word in rule.keywords:
            rules.setdefault(word.encode(), []).append(rule)
    return rules


def _is_random(name: bytes, value: bytes) -> bool:
    """Return True if a value can be a key: not readable text, a digest, a version or an identifier."""
    if (
        HARMLESS_NAME.search(name.decode("ascii", "replace"))
        or _IDENTIFIER.fullmatch(value)
        or _stopwords().search(value.lower())
    ):
        return False
    return len(_CHANGES.findall(value)) * 10 >= len(value)


def _is_example(secret: bytes) -> bool:
    lower = secret.lower()
    known = (
        lower in b"abcdefghijklmnopqrstuvwxyz0123456789" or lower.startswith(_WELL_KNOWN[0]) or lower == _WELL_KNOWN[1]
    )
    return known or b"example" in lower or b"xxxx" in lower


def is_strong(password: bytes) -> bool:
    """Return True if a password in a URL can be real, not an example from documentation."""
    mixed = len(password) >= 6 and _DIGIT.search(password) is not None and _LETTER.search(password) is not None
    return mixed and not _READABLE.search(password) and b"," not in password


def _is_password(value: bytes) -> bool:
    """Return True if a value named a password can be one: three kinds of characters, and not a word."""
    kinds = sum(kind.search(value) is not None for kind in _KINDS)
    return len(value) >= 10 and kinds >= 3 and is_strong(value)


def _entropy(value: bytes) -> float:
    """Return the Shannon entropy, in bits per character."""
    counts = (value.count(byte) / len(value) for byte in set(value))
    return -sum(share * math.log2(share) for share in counts)
