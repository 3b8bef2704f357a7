"""`snapshot`: everything a run is a function of, as it is now, under one digest.

`capture` makes every byte of the workspace durable and publishes nothing; `take` publishes. What is captured is the
workspace at one moment: if anything moved meanwhile, it is captured again or not at all.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from m5ws.config.settings import Settings
from m5ws.environment.interface import Observer
from m5ws.progress import Progress
from m5ws.records import codec, determinism
from m5ws.records.base import Digest
from m5ws.records.environment import Declared
from m5ws.records.snapshot import Annotation, Code, Snapshot
from m5ws.repository import presence, snapshots
from m5ws.repository.files.index import Index
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.gc_plans import Patience
from m5ws.repository.publishing import repeated
from m5ws.repository.repository import Repository
from m5ws.snapshot import local_installs
from m5ws.snapshot.collect import store
from m5ws.snapshot.context import Contents, Look
from m5ws.snapshot.observation import Observation
from m5ws.snapshot.sources.interface import DatasetSource, SourceControl, TokenizerProbe

_ATTEMPTS = 3
_SAID = "annotated"
_SAID_LIMIT = 256


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot whose bytes are durable (on a dry run: would be), and what is to be said about it.

    `new_bytes` is what the store did not have. `annotated`: a published annotation says all of it already.
    """

    id: Digest
    snapshot: Snapshot
    annotation: Annotation
    files: int
    size_bytes: int
    new_bytes: int
    unchanged: bool
    annotated: bool = False


def take(
    root: Path,
    settings: Settings,
    repo: Repository,
    source: SourceControl,
    datasets: DatasetSource | None,
    tokenizer_probe: TokenizerProbe | None,
    observer: Observer,
    index_path: Path,
    message: str | None = None,
    progress: Progress | None = None,
) -> Captured:
    """Capture the workspace, publish the snapshot and return it. Raises as `capture` does.

    A snapshot that is published already gets another annotation only if there is something new to say.
    """

    def attempt() -> Captured:
        captured = capture(
            root, settings, repo, source, datasets, tokenizer_probe, observer, index_path, message, False, progress
        )
        if not captured.annotated:
            # Published from here on: every tree, and the observed environment, is durable.
            snapshots.publish(repo, captured.snapshot, captured.annotation, Patience(progress=progress))
        return captured

    return repeated(attempt)


def capture(
    root: Path,
    settings: Settings,
    repo: Repository,
    source: SourceControl,
    datasets: DatasetSource | None,
    tokenizer_probe: TokenizerProbe | None,
    observer: Observer,
    index_path: Path,
    message: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Captured:
    """Make everything that the workspace at `root` pins durable, and return the snapshot; it is not published.

    A dry run writes nothing to the store and does not observe the machine. Raises SecretsFound, LinksOutside,
    NotTheContent, LocalInstalls, BadConfigFile, NotFound, DatasetModified, and FileChanged if the workspace does not
    hold still.
    """
    index_path.parent.mkdir(parents=True, exist_ok=True)
    trouble: Exception | None = None
    with Index(index_path) as index, _staging(index_path.parent) as staging:
        look = Look(
            root=Path(os.path.realpath(root)),
            settings=settings,
            repo=repo,
            source=source,
            datasets=datasets,
            probe=tokenizer_probe,
            index=index,
            staging=staging,
            dry_run=dry_run,
            progress=progress,
            observation=Observation(
                observer,
                determinism.environment(settings.determinism) | settings.run.environment,
                repo.objects.put_record,
            ),
        )
        local_installs.refuse(look, observer, _installation(look))
        for _ in range(_ATTEMPTS):
            try:
                contents = store(look)
            except (FileChanged, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                trouble = error
            else:
                return _captured(look, observer, contents, message)
    raise FileChanged(f"the workspace does not hold still: {trouble}") from trouble


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """Yield a folder for what must be fetched; it is made when something is, and removed at the end."""
    staging = Path(os.path.realpath(home)) / f"fetch-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        yield staging
    finally:
        if staging.exists():
            import shutil

            shutil.rmtree(staging)


def _captured(look: Look, observer: Observer, contents: Contents, message: str | None) -> Captured:
    snapshot = Snapshot(
        code=Code(commit=contents.state.commit, dirty=contents.dirty, tree=contents.code),
        config=contents.config,
        tokenizer=contents.tokenizer,
        datasets=tuple(sorted(contents.datasets, key=lambda dataset: dataset.name)),
        declared=_declared(look, observer),
        determinism=look.settings.determinism,
    )
    snapshot_id = look.repo.objects.digest(codec.encode(snapshot))
    said = None if message else _said_before(look, snapshot_id, snapshot)
    return Captured(
        id=snapshot_id,
        snapshot=snapshot,
        annotation=said or _annotation(look, contents, message, snapshot_id),
        files=contents.files,
        size_bytes=contents.size_bytes,
        new_bytes=contents.new_bytes,
        unchanged=contents.unchanged,
        annotated=said is not None,
    )


def _declared(look: Look, observer: Observer) -> Declared:
    wanted = look.settings.environment
    declared = observer.declare(look.root, wanted.locks, wanted.image)
    return msgspec.structs.replace(declared, wanted={**declared.wanted, **wanted.wanted})


def _annotation(look: Look, contents: Contents, message: str | None, snapshot_id: Digest) -> Annotation:
    """Return what is said about a snapshot, credentials blotted out; the observed environment is made durable."""
    from m5ws import secret_scan

    state = contents.state
    observed = None
    if not look.dry_run:
        observed = look.observation.result()
        recent = sorted(look.index.marks(_SAID))[-_SAID_LIMIT:]
        look.index.remember_marks(_SAID, {*recent, f"{_installation(look)}:{snapshot_id}"})
    return Annotation(
        created_s=time.time(),
        author=state.author,
        message=secret_scan.masked(message) if message else None,
        branch=state.branch,
        remote=secret_scan.masked(state.remote) if state.remote else None,
        observed=observed,
        notes=tuple(contents.notes),
    )


def _said_before(look: Look, snapshot_id: Digest, snapshot: Snapshot) -> Annotation | None:
    """Return the newest annotation of a snapshot that was taken from here, with all that is installed as it is now.

    It must say where small files lie now: packs that were lost may have been replaced by others. Looking at a machine
    costs more than the rest of an unchanged snapshot; each attempt of a run looks anyway.
    """
    if f"{_installation(look)}:{snapshot_id}" not in look.index.marks(_SAID):
        return None
    said = snapshots.annotations(look.repo, snapshot_id)
    if not look.dry_run:
        # The newest is what is read first.
        packings = snapshots.packings(look.repo, snapshot)
        said = said[-1:] if said and said[-1].packings == packings else []
    # What gc took away from under a publication that was late, or a disk lost, is written again.
    needed = {snapshot_id: 0} | ({said[-1].observed: 0} if said and said[-1].observed is not None else {})
    return said[-1] if said and not presence.missing(look.repo.objects, needed) else None


def _installation(look: Look) -> Digest:
    """Return a digest that changes when this interpreter, what is installed for it, or the kernel does."""
    folders = [
        (path, os.stat(path).st_mtime_ns) for path in sys.path if path.endswith("-packages") and os.path.isdir(path)
    ]
    return look.repo.objects.digest(repr((sys.executable, sys.version, os.uname().release, folders)).encode())
