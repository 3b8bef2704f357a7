"""What MLflow shows as parameters: the config files' keys, flattened, and the launch spec.

MLflow keeps a parameter for good and refuses odd names and long values, so both are fitted here; the
snapshot has the whole config, MLflow a view of it.
"""

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow.tags import Subject

_VALUE_CHARACTERS = 6000
_NAME_CHARACTERS = 250
_DEPTH = 20
_KEYS = 2000
_ODD = re.compile(r"[^/\w.\- :]")


def params(repo: Repository, subject: Subject) -> dict[str, str]:
    """Return parameter names and values; those of several config files begin with the file's path."""
    files = trees.located(repo.objects, repo.locations, subject.snapshot.config).entries
    found: dict[str, str] = {}
    for entry in files:
        prefix = "" if len(files) == 1 else f"{entry.name}:"
        flat = _flatten(_parse(entry, trees.read_file(repo.objects, repo.locations, entry)))
        for key, value in itertools.islice(flat, _KEYS):
            found[metric_name(f"{prefix}{key}")] = _cut(value)
    return found | {metric_name(key): _cut(value) for key, value in _launch(subject).items()}


def metric_name(text: str) -> str:
    """Return a name that MLflow takes for a parameter or metric; too long a one is told apart by a digest."""
    name = _ODD.sub("_", text)
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    name = "/".join(parts) or "_"
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[: _NAME_CHARACTERS - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _launch(subject: Subject) -> dict[str, str]:
    spec = subject.run.spec
    launch = {
        "launch.command": " ".join(spec.command),
        "launch.trainer": spec.trainer,
        "launch.nproc": str(spec.nproc),
        "launch.seed": _scalar(spec.seed),
        "launch.checkpoint_every": _scalar(spec.checkpoint_every),
        "launch.checkpoint_minutes": _scalar(spec.checkpoint_minutes),
        "launch.determinism": subject.snapshot.determinism.level,
        "launch.threads": str(subject.snapshot.determinism.threads),
    }
    return launch | {f"launch.environment.{key}": value for key, value in spec.environment.items()}


def _parse(entry: Entry, data: bytes) -> object:
    """Return a config file's content; a file that no parser knows is one parameter, its digest."""
    from ruamel.yaml.error import YAMLError

    path = PurePosixPath(entry.name)
    parse = _PARSERS.get(path.suffix.lower())
    try:
        return parse(data) if parse else {path.name: entry.digest}
    except (ValueError, YAMLError):
        # The script may read a dialect that this parser does not.
        return {path.name: entry.digest}


def _yaml(data: bytes) -> object:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(data)


_PARSERS: dict[str, Callable[[bytes], object]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".json": json.loads,
    ".toml": lambda data: tomllib.loads(data.decode()),
}


def _flatten(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values. YAML can hold itself: what lies deeper than any config is a mark."""
    name = ".".join(path)
    nested = isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value)
    if len(path) > _DEPTH:
        yield name, "…"
    elif isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, (*path, str(key)))
    elif isinstance(value, list) and nested:
        for index, inner in enumerate(value):
            yield from _flatten(inner, (*path, str(index)))
    elif path:
        yield name, _scalar(value)


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _cut(value: str) -> str:
    if len(value) <= _VALUE_CHARACTERS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"{value[: _VALUE_CHARACTERS - 80]}… sha256 {digest}"
