"""Whether a server keeps the one promise that a store needs: of many who create an object, one wins.

Some servers ignore `If-None-Match`, and some let several writers pass that come at once
(docs/how-to/team-store.md); on those, two writers could each believe that a name is theirs.
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
    """Have threads race for keys under `probe/`. Raises UnsafeServer if several win, and what `create` raises.

    Who may only read does not race. The keys are deleted; who may not delete leaves them, a byte each.
    """
    for _ in range(_ROUNDS):
        key = f"probe/{secrets.token_hex(8)}"
        try:
            _check(store, key, _winners(store, key))
        except AccessDenied:
            return
        finally:
            with suppress(AccessDenied):
                store.delete(key)


def _winners(store: ObjectStore, key: str) -> list[bytes]:
    gate = threading.Barrier(_WRITERS)
    winners: list[bytes] = []
    failures: list[M5Error] = []

    def write(name: bytes) -> None:
        gate.wait()
        try:
            store.create(key, name)
            winners.append(name)
        except ObjectExists:
            return
        except M5Error as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise next((one for one in failures if not isinstance(one, AccessDenied)), failures[0])
    return winners


def _check(store: ObjectStore, key: str, winners: list[bytes]) -> None:
    if len(winners) != 1:
        raise UnsafeServer(f"{len(winners)} of {_WRITERS} writers created {key} at once in {store.url}")
    if store.get(key) != winners[0]:
        raise UnsafeServer(f"{key} in {store.url} does not have the bytes of the one writer who created it")
