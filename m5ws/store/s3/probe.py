"""Test of the guarantee that a store needs: if several writers create one object, exactly one succeeds.

Some servers ignore `If-None-Match`. Others let several concurrent writers succeed (docs/how-to/team-store.md). On such
servers, two writers could both own one name.
"""

import secrets
import threading
from contextlib import suppress

from m5ws.errors import M5Error, ObjectExists
from m5ws.store.interface import ObjectStore
from m5ws.store.s3.errors import AccessDenied, UnsafeServer

_WRITERS = 8
_ROUNDS = 2


def race(store: ObjectStore) -> None:
    """Race threads for keys under `probe/`. Raises UnsafeServer if several win, and the errors of `create`.

    The keys are deleted; without permission to delete, one byte each remains.
    """
    for _ in range(_ROUNDS):
        key = f"probe/{secrets.token_hex(8)}"
        try:
            _check(store, key, _winners(store, key))
        finally:
            with suppress(AccessDenied):
                store.delete(key)


def _winners(store: ObjectStore, key: str) -> list[bytes]:
    gate = threading.Barrier(_WRITERS)
    winners: list[bytes] = []
    failures: list[M5Error | OSError] = []

    def write(name: bytes) -> None:
        gate.wait()
        try:
            store.create(key, name)
            winners.append(name)
        except ObjectExists:
            return
        except (M5Error, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise next((error for error in failures if not isinstance(error, AccessDenied)), failures[0])
    return winners


def _check(store: ObjectStore, key: str, winners: list[bytes]) -> None:
    if len(winners) != 1:
        raise UnsafeServer(f"{len(winners)} of {_WRITERS} concurrent writers created {key} in {store.url}")
    if store.get(key) != winners[0]:
        raise UnsafeServer(f"{key} in {store.url} does not have the bytes of the writer that created it")
