"""Results of arithmetic on machines, `known/<kind>/<time>-<tag>`, each written once.

The tag is a digest of the host and its digests, so that the names alone show the result of the last day.
"""

import blake3
import msgspec

from m5ws import secret_gate
from m5ws.records.known import Known
from m5ws.repository import bindings, concurrency
from m5ws.repository.repository import Repository

PREFIX = "known/"
_READ = 20
"""The number of newest records that are read, besides the oldest."""
_AGE_S = 24 * 3600


def publish(repo: Repository, result: Known) -> None:
    """Publish a result, unless the store has equal digests of the host from the last day."""
    tag = blake3.blake3(msgspec.json.encode((result.host, sorted(result.digests.items())))).hexdigest()[:16]
    folder, since = f"{PREFIX}{result.kind}/", _stamp(result.created_s - _AGE_S)
    if not any(name > since and name.endswith(tag) for name in repo.store.names(folder)):
        bindings.create(repo.store, f"{folder}{_stamp(result.created_s)}-{tag}", secret_gate.masked(result))


def _stamp(time_s: float) -> str:
    return f"{int(time_s * 1000):014d}"


def of_kind(repo: Repository, kind: str) -> list[Known]:
    """Return the first result of a kind of machine, and the newest twenty. Raises CorruptObject, UnknownSchema."""
    names = sorted(repo.store.names(f"{PREFIX}{kind}/"))
    read = names[:1] + names[1:][-_READ:]
    return list(concurrency.for_each(lambda name: bindings.record(repo.store, f"{PREFIX}{kind}/{name}", Known), read))
