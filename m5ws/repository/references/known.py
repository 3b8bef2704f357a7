"""Results of arithmetic on machines, `known/<kind>/<time>-<nonce>`, each written once."""

import os

from m5ws import secret_gate
from m5ws.records.known import Known
from m5ws.repository import bindings, concurrency
from m5ws.repository.repository import Repository

PREFIX = "known/"
_READ = 20
"""The number of newest records that are read, besides the oldest."""


def publish(repo: Repository, result: Known) -> Known:
    """Publish a result, and return it as stored."""
    stamp = f"{int(result.created_s * 1000):014d}-{os.urandom(4).hex()}"
    return bindings.create(repo.store, f"{PREFIX}{result.kind}/{stamp}", secret_gate.masked(result))


def of_kind(repo: Repository, kind: str) -> list[Known]:
    """Return the first result of a kind of machine, and the newest twenty. Raises CorruptObject, UnknownSchema."""
    names = sorted(repo.store.names(f"{PREFIX}{kind}/"))
    read = names[:1] + names[1:][-_READ:]
    return list(concurrency.for_each(lambda name: bindings.record(repo.store, f"{PREFIX}{kind}/{name}", Known), read))
