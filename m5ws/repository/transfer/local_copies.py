"""Copies of checkpoints on the local disks of the nodes: a save writes them before it uploads the same bytes.

In the folder of a node, each checkpoint of a run has a store of its own, with the parts of the node's ranks. The store
on the node of rank 0 has the reference too, which is written when the parts of all nodes are durable. A copy never
makes a checkpoint valid: only the reference in the run's own store does, and it comes after all bytes. A copy that a
kill left is published only into the ledger that led to it: a restored store, or another store of the same run, has
other attempts with the same numbers.
"""

import logging
import os
import shutil
from functools import partial
from pathlib import Path

from m5ws.errors import M5Error, NotFound
from m5ws.records.store import Format
from m5ws.repository import presence, publishing
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure, transfer
from m5ws.store.local import LocalStore

KEPT = 2
"""Copies of a run on a node. The oldest is deleted before a new copy is written."""

_log = logging.getLogger(__name__)


def create(folder: str, run: str, name: str, form: Format) -> Repository:
    """Return an empty store for the copy of a checkpoint, and delete old copies. Raises NotFound, M5Error, OSError."""
    if not folder or not Path(folder).is_dir():
        raise NotFound("this node has no folder for copies of checkpoints")
    for old in [each for each in _names(folder, run) if each != name][: 1 - KEPT]:
        remove(folder, run, old)
    return Repository.create(LocalStore(Path(folder, run, name)), form)


def find(folder: str, run: str, name: str) -> LocalStore | None:
    """Return the store with this node's parts of a checkpoint, None if there is none."""
    place = Path(folder, run, name)
    return LocalStore(place) if folder and place.is_dir() else None


def remove(folder: str, run: str, name: str = "") -> None:
    """Delete the copy of one checkpoint of a run, or all copies of the run."""
    if folder:
        shutil.rmtree(Path(folder, run, name), ignore_errors=True)


def upload(repo: Repository, run: str, folder: str) -> None:
    """Upload this node's parts of checkpoints that a kill kept from publication.

    Failures are logged, and keep no other copy from its upload: without the parts, the run resumes from an earlier
    checkpoint.
    """
    for name, copy in _unpublished(repo, run, folder).items():
        try:
            needs = {Path(each.key).name: each.size_bytes for each in copy.store.list("objects/")}
            transfer.copy_objects(copy, repo, needs, presence.missing(repo.objects, needs), None)
        except (M5Error, OSError) as error:
            _log.warning("the copy of checkpoint %s in %s is not uploaded: %s", name, folder, error)


def publish_left(repo: Repository, run: str, folder: str) -> None:
    """Publish the newest checkpoint of which a kill left copies, if the copies and the store have all its bytes.

    Called on the node of rank 0, when all other nodes have uploaded their parts. A newer attempt must not have begun,
    since it repeats the steps. Failures are logged, as for `upload`.
    """
    for name, copy in reversed(_unpublished(repo, run, folder).items()):
        try:
            _refuse_unrecorded(copy, repo, run, name)
            publish(copy, repo, run, name)
        except NotFound:
            _log.info("not all parts of checkpoint %s are on the nodes of this attempt", name)
        except (M5Error, OSError) as error:
            _log.warning("the copy of checkpoint %s in %s is not published: %s", name, folder, error)
        else:
            _log.warning("checkpoint %s of run %s is published from its copy in %s", name, run, folder)
            return


def publish(copy: Repository, repo: Repository, run: str, name: str) -> None:
    """Publish a checkpoint from a copy. Objects that the copy lacks must be in `repo`. Raises NotFound, M5Error."""
    source = repo.with_store(repo.store)
    source.objects.near = copy.store
    digest, _ = checkpoints.read(copy, run, name)
    began = repo.objects.begin()
    needs = closure.of_checkpoint(source, digest)

    def copy_missing() -> None:
        transfer.copy_objects(source, repo, needs, presence.missing(repo.objects, needs), None)

    copy_missing()
    where = checkpoints.key(run, name)
    publishing.publish(
        repo,
        lambda: {bytes.fromhex(need) for need in needs},
        # Published from here on: the store has all objects.
        partial(publishing.create_once, repo, where, copy.store.get(where)),
        run=run,
        began=began,
        repair=copy_missing,
    )


def _unpublished(repo: Repository, run: str, folder: str) -> dict[str, Repository]:
    """Return the copies of checkpoints of the newest attempt that are not published, in order of steps.

    A failure is logged. A folder into which other users may write has none.
    """
    try:
        if not (copies := _names(folder, run)):
            return {}
        _refuse_shared(folder)
        newest, published = max(ledger.attempts(repo, run), default=0), checkpoints.names(repo, run)
    except (M5Error, OSError) as error:
        _log.warning("the copies of checkpoints in %s are not used: %s", folder, error)
        return {}
    names = [name for name in copies if checkpoints.attempt_of(name) == newest and name not in published]
    return {name: repo.with_store(LocalStore(Path(folder, run, name))) for name in names}


def _refuse_shared(folder: str) -> None:
    """Raise M5Error for a folder into which other users may write."""
    status = Path(folder).lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise M5Error(f"{folder} is not private to this user")


def _refuse_unrecorded(copy: Repository, repo: Repository, run: str, name: str) -> None:
    """Raise M5Error unless the ledger of the attempt has the events of rank 0 that led to a copy. Raises NotFound."""
    _, record = checkpoints.read(copy, run, name)
    head = record.ledger.get("0", "")
    if not Chain(run, record.attempt).follow(repo, {head}).passed:
        raise M5Error(f"the ledger of attempt {record.attempt} does not have the events that led to it")


def _names(folder: str, run: str) -> list[str]:
    """Return the names of a run's checkpoints with a copy, in the order in which they were written."""
    names = (place.name for place in Path(folder, run).glob("*") if checkpoints.is_name(place.name)) if folder else ()
    return sorted(names, key=lambda name: (checkpoints.attempt_of(name), checkpoints.step_of(name)))
