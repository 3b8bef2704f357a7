"""`snapshot`: the current inputs of a run, under one digest.

A snapshot has the state of the workspace at one moment: after a change during the capture, the capture is retried, and
fails in the end.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from m5ws import secret_gate
from m5ws.config.settings import Settings
from m5ws.environment.observe.machine import Machine
from m5ws.progress import Progress, report
from m5ws.records import codec, determinism
from m5ws.records.base import Digest
from m5ws.records.environment import Declared
from m5ws.records.snapshot import Annotation, Code, Snapshot
from m5ws.repository import presence
from m5ws.repository.files.index import Index
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.gc_plans import RetryPolicy
from m5ws.repository.publishing import repeated
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot import local_installs
from m5ws.snapshot.collect import store
from m5ws.snapshot.context import PUBLISHED, CaptureContext, CaptureResult, Warn
from m5ws.snapshot.sources.dvc import Dvc
from m5ws.snapshot.sources.git import Git
from m5ws.snapshot.sources.tokenizer import Tokenizers

_ATTEMPTS = 3
_ANNOTATED = "annotated"
_ANNOTATED_LIMIT = 256


class CapturedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot whose bytes are durable (not on a dry run), and its annotation.

    `new_bytes` is the size of the objects that the store did not have. `annotated`: the annotation is published.
    `remembered`: this workspace has published the snapshot before.
    `warnings` are about the workspace, and not stored.
    """

    id: Digest
    snapshot: Snapshot
    annotation: Annotation
    files: int
    size_bytes: int
    new_bytes: int
    unchanged: bool
    annotated: bool = False
    remembered: bool = False
    warnings: tuple[str, ...] = ()


def take(
    root: Path,
    settings: Settings,
    repo: Repository,
    source: Git,
    datasets: Dvc | None,
    tokenizer_probe: Tokenizers | None,
    observer: Machine,
    index_path: Path,
    message: str | None = None,
    progress: Progress | None = None,
    warn: Warn | None = None,
    dry_run: bool = False,
    observe: bool = True,
) -> CapturedSnapshot:
    """Make all parts of the workspace at `root` durable, publish the snapshot and return it.

    A published snapshot gets another annotation only with new information. With `observe`, that has the environment of
    this machine; an attempt of a run observes its own. `warn` gets each warning before files are
    stored. A dry run writes nothing to the store, and does not observe the machine. Raises SecretsFound,
    LinksEscapeWorkspace, LfsContentMissing, BadConfigFile, NotFound, DatasetModified, and FileChanged if the workspace
    keeps changing.
    """
    index_path.parent.mkdir(parents=True, exist_ok=True)

    def attempt() -> CapturedSnapshot:
        with Index(index_path) as index, _staging(index_path.parent) as staging:
            context = CaptureContext(
                root=Path(os.path.realpath(root)),
                settings=settings,
                repo=repo,
                source=source,
                datasets=datasets,
                probe=tokenizer_probe,
                observer=observer,
                index=index,
                staging=staging,
                dry_run=dry_run,
                observe=observe,
                progress=progress,
                on_warning=warn,
            )
            captured = _capture(context, message)
        if not dry_run and not captured.annotated:
            # Published from here on: every tree, and the observed environment, is durable.
            snapshots.publish(repo, captured.snapshot, captured.annotation, RetryPolicy(progress=progress))
        elif not dry_run and not captured.remembered:
            # A kill may have come between the annotation and its keys in the index.
            snapshots.write_index(repo, captured.id, captured.snapshot, captured.annotation)
        if not dry_run and not captured.remembered:
            _remember(index_path, captured)
        return captured

    return repeated(attempt)


def _capture(context: CaptureContext, message: str | None) -> CapturedSnapshot:
    trouble: Exception | None = None
    context.warn(local_installs.warnings(context, _installation(context)))
    for _ in range(_ATTEMPTS):
        try:
            contents = store(context)
        except (FileChanged, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            trouble = error
        else:
            return _captured(context, contents, message)
    raise FileChanged(f"the workspace changed during each of {_ATTEMPTS} captures: {trouble}") from trouble


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """Yield a folder for fetched datasets. The first fetch makes it, and it is removed at the end."""
    staging = Path(os.path.realpath(parent)) / f"fetch-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        yield staging
    finally:
        if staging.exists():
            import shutil

            shutil.rmtree(staging)


def _captured(context: CaptureContext, contents: CaptureResult, message: str | None) -> CapturedSnapshot:
    snapshot = Snapshot(
        code=Code(commit=contents.state.commit, dirty=contents.dirty, tree=contents.code),
        config=contents.config,
        tokenizer=contents.tokenizer,
        datasets=tuple(sorted(contents.datasets, key=lambda dataset: dataset.name)),
        declared=_declared(context),
        determinism=context.settings.determinism,
        remote=tuple(sorted(contents.remote, key=lambda dataset: dataset.name)),
    )
    snapshot_id = context.repo.objects.digest(codec.encode(snapshot))
    published = None if message else _published_annotation(context, snapshot_id)
    return CapturedSnapshot(
        id=snapshot_id,
        snapshot=snapshot,
        annotation=published or _annotation(context, contents, message, snapshot_id),
        files=contents.files,
        size_bytes=contents.size_bytes,
        new_bytes=contents.new_bytes,
        unchanged=contents.unchanged,
        annotated=published is not None,
        remembered=published is not None and context.is_published(snapshot_id),
        warnings=tuple(context.warnings),
    )


def _declared(context: CaptureContext) -> Declared:
    wanted = context.settings.environment
    declared = context.observer.declare(context.root, wanted.locks, wanted.image)
    return msgspec.structs.replace(declared, wanted=wanted.wanted)


def _annotation(
    context: CaptureContext, contents: CaptureResult, message: str | None, snapshot_id: Digest
) -> Annotation:
    """Return a new annotation, with secrets masked. The observed environment is made durable."""
    state = contents.state
    observed = _observe(context) if context.observe and not context.dry_run else None
    if not context.dry_run:
        recent = sorted(context.index.marks(_ANNOTATED))[-_ANNOTATED_LIMIT:]
        context.index.remember_marks(_ANNOTATED, {*recent, f"{_installation(context)}:{snapshot_id}"})
    annotation = Annotation(
        created_s=time.time(),
        author=state.author,
        message=message or None,
        branch=state.branch,
        remote=state.remote,
        observed=observed,
        notes=tuple(contents.notes),
    )
    return secret_gate.masked(annotation)


def _observe(context: CaptureContext) -> Digest:
    """Observe this machine as training processes see it, and return the digest of the stored record."""
    report(context.progress, "observing this machine")
    variables = determinism.environment(context.settings.determinism) | context.settings.run.environment
    return context.repo.objects.put_record(context.observer.observe(variables))


def _published_annotation(context: CaptureContext, snapshot_id: Digest) -> Annotation | None:
    """Return the newest annotation of a snapshot that this workspace took with the same installed distributions.

    None if it has no environment, and the context demands one.
    """
    if f"{_installation(context)}:{snapshot_id}" not in context.index.marks(_ANNOTATED):
        return None
    annotations = snapshots.annotations(context.repo, snapshot_id)
    if not annotations:
        return None
    newest = annotations[-1]
    if newest.observed is None and context.observe and not context.dry_run:
        return None
    if context.is_published(snapshot_id):
        return newest
    # Records that gc deleted during a late publication, or that a disk lost, are written again.
    needed = {snapshot_id: 0} | ({newest.observed: 0} if newest.observed is not None else {})
    return newest if not presence.missing(context.repo.objects, needed) else None


def _remember(index_path: Path, captured: CapturedSnapshot) -> None:
    """Remember a snapshot as published, by its id and its trees. After an error of the publication it is not."""
    digests = {captured.id, *captured.snapshot.trees.values()}
    with Index(index_path) as index:
        older = {mark for mark in index.marks(PUBLISHED) if mark.partition(":")[0] not in digests}
        index.remember_marks(PUBLISHED, older | {f"{digest}:{captured.id}" for digest in digests})


def _installation(context: CaptureContext) -> Digest:
    """Return a digest of the interpreter, the times of its package folders, and the kernel release."""
    places = [*(path for path in sys.path if path.endswith("-packages")), os.path.join(sys.prefix, "conda-meta")]
    folders = [(path, os.stat(path).st_mtime_ns) for path in places if os.path.isdir(path)]
    return context.repo.objects.digest(repr((sys.executable, sys.version, os.uname().release, folders)).encode())
