"""Copies of a script's output files, made while it runs: one line each, the digest of a `Checkpoint` of files.

They are named by attempt and number, and none is ever changed. What a script leaves when it ends is no such copy but
a checkpoint of its own, which is compared.
"""

import re

from m5ws.errors import Fenced, ObjectExists
from m5ws.records import Checkpoint, Digest
from m5ws.repository import Repository, bindings, ledger, publishing
from m5ws.repository.reach import Reach


def prefix(run: str) -> str:
    """Return the prefix of the keys of a run's copies."""
    return f"runs/{run}/outputs/"


def is_name(text: str) -> bool:
    """Return True if `text` has the form of a copy's name."""
    return re.fullmatch(r"[0-9]{4,}-[0-9]{6,}", text) is not None


def names(repo: Repository, run: str) -> list[str]:
    """Return the names of a run's copies, in order of attempts and numbers."""
    return sorted(name for name in repo.store.names(prefix(run)) if is_name(name))


def attempt_of(name: str) -> int:
    """Return the attempt in a copy's name."""
    return int(name.partition("-")[0])


def find(repo: Repository, run: str, name: str) -> tuple[Digest, Checkpoint]:
    """Return a copy's record and its digest. Raises NotFound, CorruptObject, Misplaced."""
    return bindings.checkpoint(repo.objects, prefix(run) + name)


def publish(repo: Repository, copy: Checkpoint, number: int) -> None:
    """Publish the `number`th copy of an attempt. Raises Fenced if a newer attempt has begun, Vanished."""
    if max(ledger.attempts(repo, copy.run), default=0) > copy.attempt:
        raise Fenced(f"attempt {copy.attempt} of run {copy.run} was superseded")
    record = repo.objects.put_record(copy)

    def needs() -> set[bytes]:
        reach = Reach(repo.objects)
        reach.checkpoint(record)
        return reach.digests

    def create() -> None:
        key = f"{prefix(copy.run)}{copy.attempt:04d}-{number:06d}"
        try:
            # Published from here on.
            publishing.create_once(repo, key, f"{record}\n".encode())
        except ObjectExists as error:
            raise Fenced(f"{key} is there with another content") from error

    publishing.publish(repo, needs, create)
