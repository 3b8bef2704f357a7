"""The elements of a bisection: the smallest differences between two runs that can be taken from either.

Elements are: each config key (or the file, if it cannot be changed key by key), each changed code file, the tokenizer,
each dataset, each launch value, each environment variable of the launch, and each determinism setting. If hybrids run
in rebuilt environments, each distribution is an element too.
"""

from collections.abc import Iterator, Sequence

import msgspec

from m5ws.bisect import environments
from m5ws.diff import diff
from m5ws.diff import trees as tree_diff
from m5ws.diff.arguments import changed_values
from m5ws.diff.trees import FilePair
from m5ws.environment.drift import rate
from m5ws.records.base import Digest
from m5ws.records.run import Run
from m5ws.records.snapshot import Snapshot
from m5ws.records.verdict import Change
from m5ws.repository.files import trees
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config import merge
from m5ws.snapshot.config.merge import Keys

_RECORDING = ("checkpoint_every", "checkpoint_minutes", "fingerprint_every", "outputs", "observe")
"""Launch settings of records and saves. Hybrids keep GOOD's, since other records could not be compared."""
_UNSET = "hybrids record and save as GOOD did, to be comparable with it"


class InputDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference that can be taken from either run. `file` is set for code and config, `keys` for config values."""

    change: Change
    file: bytes = b""
    keys: Keys = ()

    @property
    def name(self) -> str:
        return f"{self.change.part} {self.change.name}"


class ExcludedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference that hybrids cannot combine, and the reason."""

    change: Change
    why: str


def list_differences(
    repo: Repository, good: Run, bad: Run, *, rebuilt: bool = False
) -> tuple[list[InputDifference], list[ExcludedDifference]]:
    """Return the differences from run `good` to `bad`: the differences that hybrids can combine, and the rest.

    Distributions can be combined if environments are `rebuilt`.
    """
    old, new = snapshots.load(repo, good.snapshot), snapshots.load(repo, bad.snapshot)
    elements = [
        *_config(repo, old.config, new.config),
        *(_file("code", pair) for pair in tree_diff.different(repo, old.code.tree, new.code.tree)),
        *(InputDifference(change=change) for change in _whole(old, new)),
        *(InputDifference(change=change) for change in _launch(good, bad) if change.name not in _RECORDING),
        *(InputDifference(change=change) for change in diff.fields("determinism", old.determinism, new.determinism)),
        *(
            InputDifference(change=change)
            for change in (environments.differing_distributions(repo, good, bad) if rebuilt else ())
        ),
    ]
    excluded = [
        *(ExcludedDifference(change=change, why=_UNSET) for change in _launch(good, bad) if change.name in _RECORDING),
        *(
            ExcludedDifference(change=change, why="a declaration installs nothing")
            for change in diff.declared(old.declared, new.declared)
        ),
        *_layout(repo, old, new, elements),
    ]
    return elements, excluded


def _file(part: str, pair: FilePair) -> InputDifference:
    return InputDifference(change=diff.file(part, pair), file=pair.path)


def _config(repo: Repository, old: Digest, new: Digest) -> Iterator[InputDifference]:
    """Yield config keys, named alone if both sides have one config file, else `file:key`, as in `diff`."""
    pairs = tree_diff.different(repo, old, new)
    if not pairs:
        return
    names = {entry.path for digest in (old, new) for entry in trees.load(repo.objects, digest).entries}
    for pair in pairs:
        keys = _keys(repo, pair)
        if keys is None:
            yield _file("config", pair)
            continue
        prefix = "" if len(names) == 1 else f"{pair.name}:"
        for place, (before, after) in keys.items():
            change = rate("config", prefix + ".".join(map(str, place)), before, after)
            yield InputDifference(change=change, file=pair.path, keys=place)


def _keys(repo: Repository, pair: FilePair) -> dict[Keys, tuple[str | None, str | None]] | None:
    if pair.old is None or pair.new is None or pair.old.mode != pair.new.mode or pair.old.mode == "link":
        return None
    texts = (trees.read_file(repo.objects, side) for side in (pair.old, pair.new))
    return merge.differing_keys(pair.name, *texts)


def _whole(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    """Yield the changes of the tokenizer and of datasets, which are taken as a whole."""
    before, after = (side.tokenizer.tree if side.tokenizer is not None else None for side in (old, new))
    if before != after:
        yield rate("tokenizer", "files", before, after)
    trees_before, trees_after = (
        {dataset.name: dataset.tree for dataset in side.datasets} | {each.name: each.manifest for each in side.remote}
        for side in (old, new)
    )
    yield from changed_values("data", "", trees_before, trees_after)


def _launch(good: Run, bad: Run) -> Iterator[Change]:
    yield from diff.launch(good.spec, bad.spec)
    before, after = ("" if run.parent is None else ", ".join(run.parent.restart) for run in (good, bad))
    if before != after:
        yield rate("launch", "from.restart", before, after)


def _layout(
    repo: Repository, old: Snapshot, new: Snapshot, elements: Sequence[InputDifference]
) -> Iterator[ExcludedDifference]:
    """Yield config files whose text differs in more than the values of their keys."""
    for pair in tree_diff.different(repo, old.config, new.config):
        places = [element.keys for element in elements if element.file == pair.path and element.keys]
        if not places or pair.old is None or pair.new is None:
            continue
        before, after = (trees.read_file(repo.objects, side) for side in (pair.old, pair.new))
        if merge.merged(pair.name, before, after, places) != after:
            change = Change(part="config", name=f"{pair.name} (text)", old=None, new=None, rating="cannot")
            yield ExcludedDifference(
                change=change, why="comments, order and layout come from BAD only with all of its keys"
            )
