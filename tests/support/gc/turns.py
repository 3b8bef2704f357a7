"""Actors that share a store, one store operation at a time, in an order chosen by the test.

Each actor is a thread that pauses before every operation until the test steps it. A schedule is a list of actors'
names, and the same list gives the same history.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from m5ws.store.interface import ObjectStat, ObjectStore
from tests.support.stores.dying_store import Died
from tests.support.stores.passing_store import PassingStore


class Serial(Executor):
    """Runs submitted work at once, in the caller's thread: a schedule has no other threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
            if isinstance(error, Died):
                raise
        return future


class Actor:
    """One thread. `doing` is the operation of the next step; `error` is the actor's error, or None."""

    def __init__(self, name: str, act: Callable[["Actor"], None]) -> None:
        self.name = name
        self.doing = ""
        self.ended = False
        self.error: BaseException | None = None
        self._killed = False
        self._go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(act,), daemon=True)
        self._thread.start()
        self._stands.acquire()

    def step(self) -> None:
        """Do one operation, and run up to the next operation."""
        assert not self.ended
        self._go.release()
        self._stands.acquire()

    def kill(self) -> None:
        """End the actor before its next operation."""
        self._killed = True
        if not self.ended:
            self.step()
            assert self.ended

    def turn(self, doing: str) -> None:
        """Pause in the actor's thread until the next step."""
        self.doing = doing
        self._stands.release()
        self._go.acquire()
        if self._killed:
            raise Died(doing)

    def pause(self, seconds: float) -> None:
        """Wait as writers do, but without time: other actors get their turns."""
        self.turn("pause")

    def _run(self, act: Callable[["Actor"], None]) -> None:
        try:
            act(self)
        except BaseException as error:  # noqa: BLE001 - Died too, and all are asked for by the test
            self.error = error
        self.ended = True
        self._stands.release()


class TurnStore(PassingStore):
    """`ObjectStore` of one actor, with a turn for each operation. A listing is one operation."""

    def __init__(self, inner: ObjectStore, actor: Actor) -> None:
        super().__init__(inner, lambda operation, key: actor.turn(f"{operation} {key}"))

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        return iter(list(super().list(prefix)))
