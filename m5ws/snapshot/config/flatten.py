"""Config files as flat keys: `optimizer.lr` → `0.001`, so that a difference has a name.

Values are written as JSON, so that `1` and `"1"` differ. YAML is read by version 1.2's rules, and never builds
an object.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath


def flatten(name: str, data: bytes) -> dict[str, str] | None:
    """Return the keys of the config file `name` (.yaml, .yml, .json, .toml); None if it is not one or not valid.

    Keys of nested tables are joined by dots, items of lists are numbered; an empty table or list is a value.
    """
    try:
        return dict(_walk((), parse(name, data)))
    except (ValueError, RecursionError):
        return None


def parse(name: str, data: bytes) -> object:
    """Return what a config file holds, as plain values. Raises ValueError: not valid, or a suffix that is not known."""
    suffix, text = PurePosixPath(name).suffix.lower(), data.decode("utf-8")
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix in (".yaml", ".yml"):
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            return YAML(typ="safe", pure=True).load(text)
        except YAMLError as error:
            raise ValueError(str(error)) from error
    raise ValueError(f"{suffix} is not a config file")


def _walk(path: tuple[str, ...], value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _walk((*path, str(key)), inner)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _walk((*path, str(number)), inner)
    else:
        yield ".".join(path), json.dumps(value, ensure_ascii=False, default=str)
