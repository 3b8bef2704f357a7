"""Config files as flat keys: `optimizer.lr` → `0.001`, so that a difference has a name.

`m5ws diff`, `--set` and MLflow's parameters all have these keys. YAML is read by version 1.2's rules, and never builds
an object. A few hundred bytes of YAML with aliases can stand for 2**60 values, so these are counted first, in the nodes
that aliases share: the work is proportional to the text.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Literal

YamlVersion = Literal["1.1", "1.2"]
MOST_VALUES = 10**5
"""Number of values of a file that are read."""
_FLOAT = r"([-+]?\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]\d+)?|[-+]?\d[\d_]*(:[0-5]?\d)+\.[\d_]*|[-+]?\.(?i:inf|nan)"
_IN_PYYAML = {"bool": re.compile("..+"), "int": re.compile(r"[-+]?\d.*"), "float": re.compile(_FLOAT)}
"""Text that PyYAML takes for these types, where ruamel.yaml's rules of YAML 1.1 take more."""


class TooManyValues(ValueError):
    """A YAML text stands for more than MOST_VALUES values, or contains itself."""

    def __init__(self) -> None:
        super().__init__(f"aliases and merge keys stand for more than {MOST_VALUES:,} values")


def flatten(name: str, data: bytes, yaml: YamlVersion = "1.2") -> dict[str, str] | None:
    """Return the keys of the config file `name` (.yaml, .yml, .json, .toml).

    Values are JSON, so `1` and `"1"` differ. None if it is not one, not valid, or has too many keys (`MOST_VALUES`).
    """
    try:
        values = list(itertools.islice(leaves(parse(name, data, yaml)), MOST_VALUES + 1))
    except (ValueError, RecursionError):
        return None
    if len(values) > MOST_VALUES:
        return None
    return {key: json.dumps(value, ensure_ascii=False, default=str) for key, value in values}


def plain(value: str) -> str:
    """Return the JSON text of a config value as people write it: text without quotes."""
    if value.startswith('"'):
        text = json.loads(value)
        return str(text)
    return value


def parse(name: str, data: bytes, yaml: YamlVersion = "1.2") -> object:
    """Return the content of a config file as plain values. Raises ValueError for invalid files and unknown suffixes.

    YAML is read by the rules of version `yaml`. By PyYAML's, which are of 1.1, `no` is false and `1e-4` is text.
    """
    suffix, text = PurePosixPath(name).suffix.lower(), data.decode("utf-8")
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix in (".yaml", ".yml"):
        from ruamel.yaml.error import YAMLError

        refuse_large(text)
        try:
            return _yaml_reader(yaml).load(text)
        except YAMLError as error:
            raise ValueError(str(error)) from error
    raise ValueError(f"{suffix} is not a config file")


def _yaml_reader(version: YamlVersion) -> Any:
    """Return a reader of YAML. ruamel.yaml's own rules of 1.1 take `1e-4` for a number and `n` for a boolean."""
    from ruamel.yaml import YAML
    from ruamel.yaml.resolver import VersionedResolver
    from ruamel.yaml.tag import Tag

    class PyYamlResolver(VersionedResolver):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            prefix, _, name = str(super().resolve(kind, value, implicit)).rpartition(":")
            is_text = name in _IN_PYYAML and implicit[0] and not _IN_PYYAML[name].fullmatch(value)
            return Tag(suffix=f"{prefix}:{'str' if is_text else name}")

    reader = YAML(typ="safe", pure=True)
    if version == "1.1":
        reader.version, reader.Resolver = version, PyYamlResolver
    return reader


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of a parsed file.

    Keys of nested tables are joined by dots, items of lists are numbered; an empty table or list is a value.
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, str(number)))
    else:
        yield ".".join(path), value


def refuse_large(text: str) -> None:
    """Raise TooManyValues if the aliases of a YAML text stand for too many values; ValueError for invalid YAML."""
    if "*" not in text:
        return
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe", pure=True).compose_all(text))
    except YAMLError as error:
        raise ValueError(str(error)) from error
    sizes = dict[int, int]()
    if sum(_size(node, sizes) for node in documents if node is not None) > MOST_VALUES:
        raise TooManyValues


def _size(node: object, sizes: dict[int, int]) -> int:
    """Return the number of values of a node, each alias counted as its whole target. A node in itself is too large."""
    if id(node) not in sizes:
        sizes[id(node)] = MOST_VALUES + 1
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in _children(node))
    return sizes[id(node)]


def _children(node: object) -> list[object]:
    """Return the nodes of a sequence, the keys and values of a mapping; nothing for a scalar, whose value is text."""
    value = getattr(node, "value", None)
    if not isinstance(value, list):
        return []
    return [child for item in value for child in (item if isinstance(item, tuple) else (item,))]
