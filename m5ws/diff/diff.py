"""Differences between the recorded inputs of two snapshots or two runs, part by part.

Trees are compared by digest first, so equal parts cost nothing, and only files that differ are read. Every change is
rated by the table of `drift`. A change without a rule `can` alter bits.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from m5ws.config.flatten import flatten
from m5ws.diff import arguments as argument_diff
from m5ws.diff import trees as tree_diff
from m5ws.diff.arguments import changed_values
from m5ws.diff.trees import FilePair
from m5ws.environment import attempt_environments, reads
from m5ws.environment.drift import different, rate
from m5ws.records.base import Digest
from m5ws.records.environment import Declared, Determinism
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.snapshot import Code, Dataset, Manifest, RemoteDataset, Tokenizer
from m5ws.records.verdict import Change
from m5ws.repository.files import trees
from m5ws.repository.references import arguments, lineage, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.wording.lists import list_names

D = TypeVar("D", Dataset, RemoteDataset)


def between_snapshots(repo: Repository, a: Digest, b: Digest) -> tuple[Change, ...]:
    """Return the changes from snapshot `a` to `b`: code, config, tokenizer, data, declared, determinism.

    Raises NotFound, CorruptObject.
    """
    if a == b:
        return ()
    old, new = snapshots.load(repo, a), snapshots.load(repo, b)
    return (
        *_code(repo, old.code, new.code),
        *_config(repo, old.config, new.config),
        *_tokenizer(repo, old.tokenizer, new.tokenizer),
        *_data(repo, old.datasets, new.datasets),
        *_remote(repo, old.remote, new.remote),
        *declared(old.declared, new.declared),
        *fields("determinism", old.determinism, new.determinism),
    )


def between_runs(repo: Repository, a: str, b: str, attempt: int | None = None) -> tuple[Change, ...]:
    """Return the changes from run `a` to `b`: in their snapshots, launches and environments, and in files outside.

    The environments are of each run's last attempt, or of `attempt` of `a`, with the facts that its ranks
    observed. Raises NotFound, CorruptObject.
    """
    old, new = runs.load(repo, a), runs.load(repo, b)
    inputs = between_inputs(repo, old, new)
    launched = [*_start(repo, old, new), *(change for change in inputs if change.part == "launch")]
    # The number of ranks follows from `nproc`: one cause is not named twice.
    named = {"world"} if any(change.name == "nproc" for change in launched) else set()
    observed = attempt_environments.between_runs(repo, a, b, attempt)
    environment = (change for change in observed if change.name not in named)
    pinned = (change for change in inputs if change.part != "launch")
    return (*pinned, *launched, *environment, *reads.between(repo, a, b))


def between_inputs(repo: Repository, old: Run, new: Run) -> tuple[Change, ...]:
    """Return the changes between the snapshots and launch specs of two runs, with arguments by name.

    Two commands with equal arguments, in another order or spelling, are one change. Raises NotFound, CorruptObject.
    """
    before, after = (arguments.load(repo, run.snapshot, run.spec) for run in (old, new))
    named = tuple(argument_diff.between(before, after))
    launched = launch(old.spec, new.spec)
    if before.script != after.script:
        scripts = rate("launch", "command", " ".join(before.script), " ".join(after.script))
        launched = tuple(scripts if change.name == "command" else change for change in launched)
    elif named:
        launched = tuple(change for change in launched if change.name != "command")
    pinned = between_snapshots(repo, old.snapshot, new.snapshot)
    return (*argument_diff.without_files(pinned, before, after), *named, *launched)


def _start(repo: Repository, old: Run, new: Run) -> Iterator[Change]:
    """Yield the difference between the starts of two runs: other checkpoints, or other restarted state."""
    before, after = old.parent, new.parent
    if (before and before.digest) != (after and after.digest):
        change = rate("launch", "from", before.name if before else None, after.name if after else None)
        stories = [(run.id, lineage.format_lineage(*lineage.chain(repo, run))) for run in (old, new)]
        starts = "; ".join(f"{name} starts {story}" for name, story in stories if story)
        yield msgspec.structs.replace(change, detail=f"{change.detail}: {starts}")
    elif before is not None and after is not None and before.restart != after.restart:
        yield rate("launch", "from.restart", ", ".join(before.restart) or None, ", ".join(after.restart) or None)


def launch(old: LaunchSpec, new: LaunchSpec) -> tuple[Change, ...]:
    """Return the changes between two launch specs, with environment variables by name."""
    # The program that starts the processes follows from their number: one cause is not named twice.
    named = {"environment", "trainer"} if old.nproc != new.nproc else {"environment"}
    plain = [change for change in fields("launch", old, new) if change.name not in named]
    variables = changed_values("launch", "environment.", old.environment, new.environment)
    return (*plain, *variables)


# --- the snapshot's parts -----------------------------------------------------------------------------------------


def _code(repo: Repository, old: Code, new: Code) -> Iterator[Change]:
    commits = [f"{code.commit or 'no commit'}{' with changes' if code.dirty else ''}" for code in (old, new)]
    if commits[0] != commits[1]:
        change = rate("code", "commit", commits[0], commits[1])
        yield msgspec.structs.replace(change, rating="cannot", detail="the files themselves are compared below")
    for pair in tree_diff.different(repo, old.tree, new.tree):
        yield file("code", pair, tree_diff.patch(repo, pair))


def _config(repo: Repository, old: Digest, new: Digest) -> Iterator[Change]:
    """Yield changed keys, named alone if both sides have one config file, else `file:key`."""
    if old == new:
        return
    names = {entry.path for digest in (old, new) for entry in trees.load(repo.objects, digest).entries}
    for pair in tree_diff.different(repo, old, new):
        yield from _config_file(repo, pair, "" if len(names) == 1 else f"{pair.name}:")


def _config_file(repo: Repository, pair: FilePair, prefix: str) -> Iterator[Change]:
    before, after = (
        flatten(pair.name, trees.read_file(repo.objects, side)) if side is not None else None
        for side in (pair.old, pair.new)
    )
    if before is None or after is None:
        yield file("config", pair, tree_diff.patch(repo, pair))
    elif before == after:
        # Another parser may see a difference: YAML 1.1 reads 1e-3 as text, 1.2 as a number.
        change = file("config", pair, tree_diff.patch(repo, pair))
        yield msgspec.structs.replace(change, name=f"{pair.name} (keys and values are equal, the text differs)")
    else:
        yield from changed_values("config", prefix, before, after)


def _tokenizer(repo: Repository, old: Tokenizer | None, new: Tokenizer | None) -> Iterator[Change]:
    for pair in tree_diff.different(repo, _tree(old), _tree(new)):
        yield file("tokenizer", pair)
    if old is None or new is None:
        return
    if old.probe_text != new.probe_text:
        change = rate("tokenizer", "probe text", old.probe_text, new.probe_text)
        yield msgspec.structs.replace(change, rating="cannot", detail="its token ids cannot be compared")
    elif old.probe_ids != new.probe_ids:
        change = rate("tokenizer", "probe ids", _ids(old.probe_ids), _ids(new.probe_ids))
        yield msgspec.structs.replace(change, detail=_first_id(old.probe_ids, new.probe_ids))


def _tree(part: Tokenizer | Dataset | None) -> Digest | None:
    return None if part is None else part.tree


def _ids(ids: Sequence[int] | None) -> str | None:
    return None if ids is None else f"{len(ids)} ids: {' '.join(map(str, ids))}"


def _first_id(old: Sequence[int] | None, new: Sequence[int] | None) -> str:
    if old is None or new is None:
        return "one side has no token ids: no tokenizer library was installed"
    place = next((place for place, (x, y) in enumerate(zip(old, new, strict=False)) if x != y), min(len(old), len(new)))
    return f"the token ids of the same text differ from position {place} on"


def _data(repo: Repository, old: Sequence[Dataset], new: Sequence[Dataset]) -> Iterator[Change]:
    for name, one, two in _differing(old, new):
        change = rate("data", name, _pin(one), _pin(two))
        pairs = tree_diff.different(repo, _tree(one), _tree(two))
        if not pairs and one is not None and two is not None:
            detail = "the kind of pin differs; the files are equal"
            yield msgspec.structs.replace(change, rating="cannot", detail=detail)
            continue
        added = [pair.name for pair in pairs if pair.old is None]
        removed = [pair.name for pair in pairs if pair.new is None]
        yield _with_files(change, added, removed, [pair.name for pair in pairs if pair.old and pair.new])


def _remote(repo: Repository, old: Sequence[RemoteDataset], new: Sequence[RemoteDataset]) -> Iterator[Change]:
    """Yield the changes of datasets that stay in their remote. Another place of equal files is no other content."""
    for name, one, two in _differing(old, new):
        change = rate("data", name, _pin(one), _pin(two))
        if one is not None and two is not None and one.manifest == two.manifest:
            yield msgspec.structs.replace(change, rating="cannot", detail="the place differs; the files are equal")
            continue
        files, others = (
            {file.path: file for file in repo.objects.get_record(side.manifest, Manifest).files} if side else {}
            for side in (one, two)
        )
        changed = (path for path in files.keys() & others.keys() if files[path] != others[path])
        yield _with_files(change, sorted(others.keys() - files), sorted(files.keys() - others), sorted(changed))


def _differing(old: Sequence[D], new: Sequence[D]) -> Iterator[tuple[str, D | None, D | None]]:
    """Yield the datasets that differ by name, with both sides."""
    return different(*({dataset.name: dataset for dataset in side} for side in (old, new)))


def _with_files(change: Change, added: Sequence[str], removed: Sequence[str], changed: Sequence[str]) -> Change:
    """Return the change of a dataset with the names of its files."""
    kinds = {"added": added, "removed": removed, "changed": changed}
    lines = (f"{kind} {len(names)}: {list_names(names)}" for kind, names in kinds.items() if names)
    return msgspec.structs.replace(change, detail="\n".join(lines))


def _pin(dataset: Dataset | RemoteDataset | None) -> str | None:
    if dataset is None:
        return None
    digest, where = (
        (dataset.manifest, f" in {dataset.url}") if isinstance(dataset, RemoteDataset) else (dataset.tree, "")
    )
    return f"{dataset.kind} {dataset.hash or digest[:16]}{where}, {dataset.size_bytes} bytes"


def declared(old: Declared, new: Declared) -> Iterator[Change]:
    """Yield the changes of the declared environments: image, lock files, wanted versions."""
    if old.image != new.image:
        yield rate("declared", "image", old.image, new.image)
    yield from changed_values("declared", "lock ", old.locks, new.locks)
    yield from changed_values("declared", "wanted ", old.wanted, new.wanted)


def file(part: str, pair: FilePair, detail: str | None = None) -> Change:
    """Return the change of a file, with short forms of its contents."""
    change = rate(part, pair.name, tree_diff.short(pair.old), tree_diff.short(pair.new))
    return msgspec.structs.replace(change, detail=detail)


def fields(part: str, old: LaunchSpec | Determinism, new: LaunchSpec | Determinism) -> Iterator[Change]:
    """Yield the changed fields of a record."""
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after:
            yield rate(part, field.name, _shown(before), _shown(after))


def _shown(value: object) -> str | None:
    if value is None:
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
