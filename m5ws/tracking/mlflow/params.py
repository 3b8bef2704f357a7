"""Parameters of an MLflow run: the flat keys of the config files, the script's arguments, and the launch spec.

Arguments begin with `args.` and the launch spec with `launch.`, so that config keys keep their own names.

MLflow never changes a parameter, and refuses odd names and long values. So names and values are adapted here. The
snapshot has the whole config.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from m5ws.config.flatten import leaves, parse
from m5ws.records.tree import Entry
from m5ws.repository import arguments
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow.tags import Subject

_VALUE_CHARACTERS = 6000
_NAME_CHARACTERS = 250
_KEYS = 2000
_ODD = re.compile(r"[^/\w.\- :]")


def params(repo: Repository, subject: Subject) -> dict[str, str]:
    """Return parameter names and values. With several config files, names begin with the file's path."""
    files = trees.located(repo.objects, repo.locations, subject.snapshot.config).entries
    values: dict[str, str] = {}
    for entry in files:
        prefix = "" if len(files) == 1 else f"{entry.name}:"
        flat = _flat(entry, trees.read_file(repo.objects, repo.locations, entry))
        for key, value in flat:
            values[metric_name(f"{prefix}{key}")] = _cut(_scalar(value))
    given = arguments.load(repo, subject.run.snapshot, subject.run.spec).parameters()
    named = {f"args.{key}": value for key, value in itertools.islice(given.items(), _KEYS)}
    return values | {metric_name(key): _cut(value) for key, value in (named | _launch(subject)).items()}


def metric_name(text: str) -> str:
    """Return a name that MLflow accepts for a parameter or metric. A long name is cut and gets a digest."""
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
        "launch.nproc": _scalar(spec.nproc),
        "launch.seed": _scalar(spec.seed),
        "launch.checkpoint_every": _scalar(spec.checkpoint_every),
        "launch.checkpoint_minutes": _scalar(spec.checkpoint_minutes),
        "launch.determinism": subject.snapshot.determinism.level,
        "launch.threads": str(subject.snapshot.determinism.threads),
    }
    return launch | {f"launch.environment.{key}": value for key, value in spec.environment.items()}


def _flat(entry: Entry, data: bytes) -> Iterator[tuple[str, object]]:
    """Yield the first keys and values of a config file; a file that cannot be parsed is one parameter, its digest."""
    name = PurePosixPath(entry.name).name
    try:
        # At once: a YAML file that contains itself ends in a RecursionError.
        yield from [(key or name, value) for key, value in itertools.islice(leaves(parse(entry.name, data)), _KEYS)]
    except (ValueError, RecursionError):
        # The script may read a dialect that this parser does not.
        yield name, entry.digest


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _cut(value: str) -> str:
    if len(value) <= _VALUE_CHARACTERS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"{value[: _VALUE_CHARACTERS - 80]}… sha256 {digest}"
