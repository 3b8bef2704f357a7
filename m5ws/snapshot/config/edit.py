"""Config files that people write: YAML, JSON and TOML, checked when they are captured and edited in place.

A file that a run cannot read should fail the snapshot, with its line, and not the run an hour later.
"""

import json
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from m5ws.errors import M5Error

Edit = Callable[[Any], Any]
"""Takes a parsed document (mappings and sequences of plain values) and returns the changed one."""


_OTHER_IN_YAML_1_1 = re.compile(
    r"(?i)y|n|yes|no|on|off|[-+]?[\d_]+(?::[0-5]?\d)+(?:\.[\d_]*)?|[-+]?[\d_.]+(?:e[-+]?[\d_]+)?|0[0-7_]+|0[bx][\da-f_]+"
)
"""Text that PyYAML and its like take for a boolean or a number, so that it needs quotes."""


class BadConfigFile(M5Error):
    """A config file is not valid YAML, JSON or TOML; the message begins with its name and line."""

    hint = "Correct it, or take it out of [config] files in m5ws.toml."

    def __init__(self, name: str, line: int, problem: str) -> None:
        super().__init__(f"{name}:{line}: {problem}")


def check(name: str, data: bytes) -> None:
    """Raise BadConfigFile unless `data` is what the suffix of `name` says; other suffixes are not looked into."""
    suffix = _suffix(name)
    if suffix == ".json":
        _json(name, _text(name, data))
    elif suffix == ".toml":
        _toml(name, _text(name, data))
    elif suffix in (".yaml", ".yml"):
        _yaml(name, _text(name, data))


def edit(name: str, data: bytes, change: Edit) -> bytes:
    """Return the file with `change` made to its document; comments, order and layout stay as they are.

    Raises BadConfigFile, for a suffix that is not known too.
    """
    text = _text(name, data)
    suffix = _suffix(name)
    if suffix == ".json":
        return _edit_json(name, text, change).encode()
    if suffix == ".toml":
        return _edit_toml(name, text, change).encode()
    if suffix in (".yaml", ".yml"):
        return _edit_yaml(name, text, change).encode()
    raise BadConfigFile(name, 1, "is neither YAML nor JSON nor TOML, so that no key of it can be set")


def scalar(text: str) -> object:
    """Return the value that YAML 1.2 gives `text`: `1e-4` is a number, `on` is text, `[1, 2]` a list."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error


def yaml_styled(value: object) -> object:
    """Return a plain value in the form in which readers of YAML 1.1 and 1.2 take it for the same, on one line."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, str) and _OTHER_IN_YAML_1_1.fullmatch(value):
        return DoubleQuotedScalarString(value)
    if isinstance(value, list):
        sequence = CommentedSeq(map(yaml_styled, value))
        sequence.fa.set_flow_style()
        return sequence
    if isinstance(value, dict):
        mapping = CommentedMap({key: yaml_styled(inner) for key, inner in value.items()})
        mapping.fa.set_flow_style()
        return mapping
    return value


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadConfigFile(name, data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from error


# --- JSON ------------------------------------------------------------------------------------------


def _json(name: str, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            line = text.count("\n", 0, text.rindex(json.dumps(twice, ensure_ascii=False))) + 1
            raise BadConfigFile(name, line, f"key {twice!r} is there twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise BadConfigFile(name, error.lineno, f"not valid JSON: {error.msg}") from error


def _edit_json(name: str, text: str, change: Edit) -> str:
    document = change(_json(name, text))
    indent = re.search(r"^[\[{][ \t]*\r?\n([ \t]+)\S", text)
    end = text[len(text.rstrip()) :]
    layout = indent[1] if indent else None
    return json.dumps(document, indent=layout, ensure_ascii=text.isascii(), default=str) + end


# --- TOML ------------------------------------------------------------------------------------------


def _toml(name: str, text: str) -> Any:
    import tomlkit
    from tomlkit.exceptions import ParseError, TOMLKitError

    try:
        return tomlkit.parse(text)
    except ParseError as error:
        raise BadConfigFile(name, error.line, f"not valid TOML: {error}") from error
    except TOMLKitError as error:
        raise BadConfigFile(name, 1, f"not valid TOML: {error}") from error


def _edit_toml(name: str, text: str, change: Edit) -> str:
    import tomlkit

    return tomlkit.dumps(change(_toml(name, text)))


# --- YAML ------------------------------------------------------------------------------------------


def _yaml(name: str, text: str) -> list[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return list(YAML(typ="rt", pure=True).load_all(text))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        problem = f"{error.context}: {error.problem}" if error.context else str(error.problem)
        raise BadConfigFile(name, line, f"not valid YAML: {problem}") from error
    except YAMLError as error:
        raise BadConfigFile(name, 1, f"not valid YAML: {error}") from error


def _edit_yaml(name: str, text: str, change: Edit) -> str:
    from io import StringIO

    documents = _yaml(name, text)
    if len(documents) > 1:
        raise BadConfigFile(name, 1, "holds several documents, so that no key of it can be set")
    yaml = _layout_keeping(text)
    document = yaml.load(text)
    out = StringIO()
    yaml.dump(change({} if document is None else document), out)
    return out.getvalue()


def _layout_keeping(text: str) -> Any:
    """Return a YAML editor that writes as `text` is written, and numbers so that YAML 1.1 readers see them too."""
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import RoundTripRepresenter
    from ruamel.yaml.util import load_yaml_guess_indent

    class Representer(RoundTripRepresenter):
        pass

    def number(representer: Any, value: float) -> Any:
        text = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
        dotted = re.sub(r"^(-?\d+)e", r"\1.0e", text)
        return representer.represent_scalar("tag:yaml.org,2002:float", dotted)

    Representer.add_representer(float, number)
    yaml = YAML(typ="rt", pure=True)
    yaml.Representer = Representer
    yaml.preserve_quotes = True
    yaml.width = 2**20
    _, sequence, offset = load_yaml_guess_indent(text)
    if sequence is not None and offset is not None:
        yaml.indent(sequence=sequence, offset=offset)
    return yaml
