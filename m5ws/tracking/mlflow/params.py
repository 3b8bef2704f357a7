"""Parameters of an MLflow run: the flat keys of the config files, the script's arguments, and the launch spec.

Arguments begin with `args.` and the launch spec with `launch.`, so that config keys keep their own names.

MLflow never changes a parameter, and refuses odd names and long values. So names and values are adapted here. The
snapshot has the whole config.
"""

import hashlib
import itertools
import re

from m5ws.repository.references import arguments, parameters
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow.tags import Subject

_VALUE_CHARACTERS = 6000
_NAME_CHARACTERS = 250
_DIGITS = 12
_KEYS = 2000
_ODD = re.compile(r"[^/\w.\- :]")


def params(repo: Repository, subject: Subject) -> dict[str, str]:
    """Return parameter names and values."""
    run, determinism = subject.run, subject.snapshot.determinism
    config = parameters.config(repo, run.snapshot)
    given = arguments.load(repo, run.snapshot, run.spec).parameters()
    launch = {
        **parameters.launch(run.spec),
        "launch.command": " ".join(run.spec.command),
        "launch.determinism": determinism.level,
        "launch.threads": str(determinism.threads),
    }
    named = [*itertools.islice(config.items(), _KEYS)]
    named += [(f"args.{key}", value) for key, value in itertools.islice(given.items(), _KEYS)]
    return {metric_name(key): _cut(value) for key, value in (*named, *launch.items())}


def metric_name(text: str) -> str:
    """Return a name that MLflow accepts for a parameter or metric.

    A name that is changed gets a digest, so that no two names become one.
    """
    parts = [part for part in _ODD.sub("_", text).split("/") if part not in ("", ".", "..")]
    name = "/".join(parts)[: _NAME_CHARACTERS - _DIGITS - 1]
    return name if name == text else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _cut(value: str) -> str:
    if len(value) <= _VALUE_CHARACTERS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"{value[: _VALUE_CHARACTERS - 80]}… sha256 {digest}"
