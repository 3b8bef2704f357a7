"""The gate for each text that a person gives and a store keeps.

A record of a run is refused if a text in it can be a secret: without the text, it would be another run. Texts that only
describe (messages, notes, authors, branches) are masked.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

import msgspec

from m5ws import secret_scan
from m5ws.errors import UsageError

T = TypeVar("T")


class SecretText(UsageError):
    """A text that would be stored can be a secret."""

    hint = "Pass secrets in environment variables of the shell. The ranks inherit the variables, and m5ws records none."

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} looks like a secret, and would be stored")


def refuse(record: object, what: str) -> None:
    """Raise SecretText if a text of a record can be a secret. `what` is the record in words."""
    for place, name, text in _texts(record, ""):
        if secret_scan.is_secret(name, text):
            raise SecretText(f"{place} of {what}")


def refuse_value(option: str, key: str, value: str) -> None:
    """Raise SecretText if the value of a key, which an option gives, can be a secret."""
    if secret_scan.is_secret(key, value):
        raise SecretText(f"the value of {option} {secret_scan.masked(key)}")


def masked(record: T) -> T:
    """Return a record with the secrets in its texts masked."""
    return cast("T", _masked(record))


def _masked(value: object) -> object:
    if isinstance(value, str):
        return secret_scan.masked(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: _masked(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, Mapping):
        return {key: _masked(inner) for key, inner in value.items()}
    return type(value)(map(_masked, value)) if isinstance(value, tuple | list) else value


def _texts(value: object, place: str, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the place, the name and the text of each text in a value. An option names the word after it."""
    if isinstance(value, str):
        yield place, name, value
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _texts(getattr(value, field), f"{place}.{field}".lstrip("."), field)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key, f"the name of a value in {place}")
            yield from _texts(inner, f"{place}.{key}".lstrip("."), str(key))
    elif isinstance(value, tuple | list):
        before = ""
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{place}.{number}", before)
            if isinstance(inner, str) and "=" in inner:
                key, _, text = inner.partition("=")
                yield f"{place}.{number}", key.lstrip("-"), text
            before = inner.lstrip("-") if isinstance(inner, str) and inner.startswith("-") else ""
