"""Config files in YAML, JSON and TOML: checked when they are captured, and edited with their layout.

An invalid file fails the snapshot, with its line, and not the run an hour later.
"""

import json
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from m5ws.config import yaml_size
from m5ws.errors import M5Error

Edit = Callable[[Any], Any]
"""Function from a parsed document (mappings and sequences of plain values) to the changed one."""


_OTHER_IN_YAML_1_1 = re.compile(
    r"(?i)y|n|yes|no|on|off|[-+]?[\d_]+(?::[0-5]?\d)+(?:\.[\d_]*)?|[-+]?[\d_.]+(?:e[-+]?[\d_]+)?|0[0-7_]+|0[bx][\da-f_]+"
)
"""Text that readers of YAML 1.1, such as PyYAML, take for a boolean or a number. It needs quotes."""


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
    elif suffix in (".yaml", ".yml"):
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
        return _edit_toml(name, text, change).encode()
    if suffix in (".yaml", ".yml"):
        return _edit_yaml(name, text, change).encode()
    raise BadConfigFile(name, 1, "the file is neither YAML, JSON nor TOML: its keys cannot be set")


def scalar(text: str) -> object:
    """Return the value of `text` in YAML 1.2: `1e-4` is a number, `on` is text, `[1, 2]` is a list."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml_size.refuse_large(text)
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error


def yaml_styled(value: object) -> object:
    """Return a plain value in a style, on one line, that readers of YAML 1.1 and 1.2 read alike."""
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


def _edit_toml(name: str, text: str, change: Edit) -> str:
    import tomlkit

    return tomlkit.dumps(change(_toml(name, text)))


# --- YAML ------------------------------------------------------------------------------------------


def _yaml(name: str, text: str) -> list[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        yaml_size.refuse_large(text)
    except yaml_size.TooManyValues as error:
        raise BadConfigFile(name, 1, str(error)) from error
    except ValueError:
        pass  # The next reader reports the line.
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
        raise BadConfigFile(name, 1, "the file contains several documents: its keys cannot be set")
    yaml = _layout_keeping(text)
    document = yaml.load(text)
    out = StringIO()
    yaml.dump(change({} if document is None else document), out)
    return out.getvalue()


def _layout_keeping(text: str) -> Any:
    """Return a YAML editor with the layout of `text`, which writes numbers that YAML 1.1 readers read too."""
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
