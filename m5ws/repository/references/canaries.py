"""Results of canaries, `canaries/<snapshot>/<kind>/<time>-<nonce>`, each written once."""

from m5ws import secret_gate
from m5ws.records.base import Digest
from m5ws.records.canary import Canary
from m5ws.repository import bindings
from m5ws.repository.repository import Repository

PREFIX = "canaries/"


def publish(repo: Repository, result: Canary) -> Canary:
    """Publish a result, and return it as stored."""
    prefix = f"{PREFIX}{result.snapshot}/{result.kind}/"
    return bindings.create_at(repo.store, prefix, result.created_s, secret_gate.masked(result))


def of_snapshot(repo: Repository, snapshot: Digest) -> list[Canary]:
    """Return the results of a snapshot on all kinds of machines, oldest first. Raises CorruptObject, UnknownSchema."""
    results = bindings.records(repo.store, f"{PREFIX}{snapshot}/", Canary).values()
    return sorted(results, key=lambda result: result.created_s)


def snapshots(repo: Repository) -> list[Digest]:
    """Return the snapshots that have results, sorted."""
    return list(repo.store.names(PREFIX))
