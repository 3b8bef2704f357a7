"""Parameters of a run: names and values of its inputs, for lists and tables in which runs are compared.

The keys of config files have the names of `m5ws diff`. Arguments of the script begin with `args.`, and the fields of
the launch with `launch.`. The other parts of the snapshot, such as `code`, have the start of their digest as value.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from m5ws.config.commands.arguments import split
from m5ws.config.flatten import flatten, plain
from m5ws.records.base import Digest
from m5ws.records.run import LaunchSpec, Run
from m5ws.repository.files import trees
from m5ws.repository.references import arguments, snapshots
from m5ws.repository.repository import Repository

_SNAPSHOTS = 256
_DIGITS = 10


class ParameterReader:
    """Reads parameters, each snapshot once as long as few others come between."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._of_snapshot = lru_cache(_SNAPSHOTS)(self._read)

    def of_run(self, run: Run) -> dict[str, str]:
        """Return the parameters of a run, the config's first. Raises NotFound, CorruptObject."""
        parameters = arguments.load(self._repo, run.snapshot, run.spec).parameters()
        return {
            **self._of_snapshot(run.snapshot),
            **{f"args.{name}": value for name, value in parameters.items()},
            **launch(run.spec),
        }

    def _read(self, snapshot_id: Digest) -> dict[str, str]:
        return {**config(self._repo, snapshot_id), **_parts(self._repo, snapshot_id)}


def config(repo: Repository, snapshot_id: Digest) -> dict[str, str]:
    """Return the keys of a snapshot's config files. With several files, names begin with the file's path.

    A file that cannot be parsed is one parameter: its digest.
    """
    files = trees.load(repo.objects, snapshots.load(repo, snapshot_id).config).entries
    values: dict[str, str] = {}
    for entry in files:
        prefix = "" if len(files) == 1 else f"{entry.name}:"
        flat = flatten(entry.name, trees.read_file(repo.objects, entry))
        if flat is None:
            values[entry.name] = entry.digest[:_DIGITS]
        else:
            values |= {f"{prefix}{key}": plain(value) for key, value in flat.items()}
    return values


def launch(spec: LaunchSpec) -> dict[str, str]:
    """Return the fields of a launch that are not their defaults. Of the command, the script alone."""
    values: dict[str, str] = {}
    for field in msgspec.structs.fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, tuple):
            value = " ".join(split(value)[0] if field.name == "command" else value)
        if isinstance(value, dict):
            values |= {f"launch.{field.name}.{name}": text for name, text in value.items()}
        elif value not in (None, ""):
            values[f"launch.{field.name}"] = str(value)
    return values


def _parts(repo: Repository, snapshot_id: Digest) -> dict[str, str]:
    """Return the parts of a snapshot besides its config, by the start of their digests."""
    snapshot = snapshots.load(repo, snapshot_id)
    parts = {name: digest[:_DIGITS] for name, digest in snapshot.trees.items() if name != "config"}
    if (image := snapshot.declared.image) is not None:
        parts["image"] = image
    return parts


def differing(of_runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose values are not the same in all runs, in the order in which they appear."""
    names: Iterable[str] = dict.fromkeys(name for parameters in of_runs for name in parameters)
    return [name for name in names if len({parameters.get(name) for parameters in of_runs}) > 1]
