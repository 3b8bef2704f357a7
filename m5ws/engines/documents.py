"""Texts in YAML, for programs that read jobs in YAML 1.1 or 1.2.

A text without quotes has letters alone at its begin, so that no version of YAML reads a number, a time or `yes` in it.
"""

import io
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z][\w./-]*", re.IGNORECASE | re.ASCII)


def write(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, with lines of shell as blocks."""
    from ruamel.yaml import YAML

    written = io.StringIO()
    yaml = YAML()
    yaml.width = 4096
    yaml.dump(_quoted(document), written)
    return written.getvalue()


def read(text: str) -> dict[str, Any]:
    """Return the document in a text of `write`."""
    from ruamel.yaml import YAML

    document: dict[str, Any] = YAML(typ="safe").load(text)
    return document


def _quoted(value: object) -> object:
    """Return a value with the style of each text in it."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    if isinstance(value, Mapping):
        return {_quoted(key): _quoted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(inner) for inner in value]
    if not isinstance(value, str) or _PLAIN.fullmatch(value):
        return value
    lines = value.split("\n")
    is_block = lines[0].strip() and lines[-1] == "" and all(line == "" or line.isprintable() for line in lines)
    return LiteralScalarString(value) if is_block and lines[-2] else DoubleQuotedScalarString(value)
