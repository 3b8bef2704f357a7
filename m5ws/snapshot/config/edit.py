"""Config files in YAML, JSON and TOML: checked when they are captured, and edited with their layout.

An invalid file fails the snapshot, with its line, and not the run an hour later.
"""

import json
import re
from collections.abc import Callable, MutableMapping, MutableSequence, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from m5ws.config.flatten import TooManyValues, flatten, parse, refuse_large
from m5ws.errors import M5Error

Edit = Callable[[Any], Any]
"""Function from a parsed document (mappings and sequences of plain values) to the changed document."""

Values = dict[str, str]
"""Values by key, as JSON (`flatten`)."""

_VALUE = "value.yaml"


class BadConfigFile(M5Error):
    """A config file is not valid YAML, JSON or TOML. The message begins with its name and line."""

    hint = "Correct the file, or remove it from [config] files in m5ws.toml."

    def __init__(self, name: str, line: int, problem: str) -> None:
        super().__init__(f"{name}:{line}: {problem}")


def check(name: str, data: bytes) -> None:
    """Raise BadConfigFile unless `data` is valid YAML, JSON or TOML, by the suffix of `name`; ignore other suffixes."""
    suffix = _suffix(name)
    if suffix == ".json":
        _json(name, _text(name, data))
    elif suffix == ".toml":
        _toml(name, _text(name, data))
    elif _is_yaml(name):
        _yaml(name, _text(name, data))


def edit(name: str, data: bytes, change: Edit) -> bytes:
    """Return the file with `change` applied to its document. Comments, order and layout stay the same.

    Raises BadConfigFile, also for an unknown suffix.
    """
    text = _text(name, data)
    suffix = _suffix(name)
    if suffix == ".json":
        return _edit_json(name, text, change).encode()
    if suffix == ".toml":
        document: str = change(_toml(name, text)).as_string()
        return document.encode()
    if _is_yaml(name):
        return _edit_yaml(name, text, change).encode()
    raise BadConfigFile(name, 1, "the file is neither YAML, JSON nor TOML: its keys cannot be set")


def yaml_styled(value: object) -> object:
    """Return a plain value in a style, on one line, that readers of YAML 1.1 and 1.2 read alike."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, str) and flatten(_VALUE, value.encode()) != flatten(_VALUE, value.encode(), "1.1"):
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


def _is_yaml(name: str) -> bool:
    return _suffix(name) in (".yaml", ".yml")


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadConfigFile(name, data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from error


# --- one key ---------------------------------------------------------------------------------------


def below(values: Values, key: str) -> Values:
    """Return the values of a key: its own value with the name "", or the values below the key."""
    return {name[len(key) + 1 :]: value for name, value in values.items() if name == key or name.startswith(f"{key}.")}


def with_value(name: str, data: bytes, old: Values, key: str, text: str) -> tuple[bytes, Values]:
    """Return a file with another value of a key, and its values. `old` are its values before.

    The value is `text`, read as YAML 1.2. It is written so that PyYAML and other readers of YAML 1.1 read it
    alike. Raises ValueError if the value or the key cannot be in the file.
    """
    value = parse(_VALUE, text.encode())
    result = edit(name, data, partial(_assigned, yaml_styled(value) if _is_yaml(name) else value, name, key))
    new, new_1_1 = flatten(name, result) or {}, _read_as_1_1(name, result)
    if below(new_1_1, key) not in ({}, below(new, key)):
        raise ValueError("readers of YAML 1.1 and 1.2 would read other values")
    return (data, old) if (new, new_1_1) == (old, _read_as_1_1(name, data)) else (result, new)


def types(values: Values) -> set[str]:
    """Return the types of values. null is of every type."""
    kinds = {'"': "text", "t": "a boolean", "f": "a boolean", "[": "a list", "{": "a mapping"}
    return {kinds.get(value[0], "a number") for value in values.values() if value != "null"}


def seen_types(name: str, data: bytes, old: Values, key: str) -> set[str]:
    """Return the types of a key's values, as readers of YAML 1.2 and 1.1 see them. `old` are the file's values."""
    return types(below(old, key)) | types(below(_read_as_1_1(name, data), key))


def _read_as_1_1(name: str, data: bytes) -> Values:
    """Return the values that a reader of YAML 1.1 sees; none if the file is no YAML of that version."""
    return (flatten(name, data, "1.1") or {}) if _is_yaml(name) else {}


def _assigned(value: object, name: str, key: str, document: Any) -> Any:
    """Set a key in a parsed document, and return the document."""
    if value is None and _suffix(name) == ".toml":
        raise ValueError("TOML has no null")
    _assign(document, key.split("."), value)
    return document


def _assign(node: Any, parts: Sequence[str], value: object) -> None:
    """Set the key in a part of a parsed document, or add it. Keys may contain dots themselves."""
    if isinstance(node, MutableMapping):
        for length in range(1, len(parts) + 1):
            # Keys in YAML may be numbers.
            key = next((key for key in node if str(key) == ".".join(parts[:length])), None)
            if key is not None and length < len(parts):
                return _assign(node[key], parts[length:], value)
            if key is not None:
                node[key] = value
                return None
        for part in reversed(parts[1:]):
            value = {part: value}
        node[parts[0]] = value
    elif isinstance(node, MutableSequence) and parts[0].isdecimal() and int(parts[0]) < len(node):
        if len(parts) > 1:
            return _assign(node[int(parts[0])], parts[1:], value)
        node[int(parts[0])] = value
    else:
        raise ValueError(f"{'.'.join(parts)} is not below a mapping or list")
    return None


# --- JSON ------------------------------------------------------------------------------------------


def _json(name: str, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            line = text.count("\n", 0, text.rindex(json.dumps(twice, ensure_ascii=False))) + 1
            raise BadConfigFile(name, line, f"duplicate key {twice!r}")
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


# --- YAML ------------------------------------------------------------------------------------------


def _yaml(name: str, text: str) -> list[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    _refuse_large(name, text)
    try:
        return list(YAML(typ="rt", pure=True).load_all(text))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        problem = f"{error.context}: {error.problem}" if error.context else str(error.problem)
        raise BadConfigFile(name, line, f"not valid YAML: {problem}") from error
    except YAMLError as error:
        raise BadConfigFile(name, 1, f"not valid YAML: {error}") from error


def _refuse_large(name: str, text: str) -> None:
    """Raise BadConfigFile for YAML that stands for too many values; ignore invalid YAML."""
    try:
        refuse_large(text)
    except TooManyValues as error:
        raise BadConfigFile(name, 1, str(error)) from error
    except ValueError:
        pass


def _edit_yaml(name: str, text: str, change: Edit) -> str:
    from io import StringIO

    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.util import load_yaml_guess_indent

    _refuse_large(name, text)
    yaml = _layout_keeping()
    try:
        document, sequence, offset = load_yaml_guess_indent(text, yaml=yaml)
    except YAMLError:
        # Reading again gives the error its line.
        _yaml(name, text)
        raise BadConfigFile(name, 1, "the file contains several documents: its keys cannot be set") from None
    if sequence is not None and offset is not None:
        yaml.indent(sequence=sequence, offset=offset)
    out = StringIO()
    yaml.dump(change({} if document is None else document), out)
    return out.getvalue()


def _layout_keeping() -> Any:
    """Return a YAML editor that keeps quotes and lines, and writes numbers that YAML 1.1 readers read too."""
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import RoundTripRepresenter

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
    return yaml
