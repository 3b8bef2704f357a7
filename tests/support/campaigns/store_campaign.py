"""Random operations on a store with a disturbed network, and a model of the allowed answers.

An operation may succeed, or raise an `M5Error`. Anything else is a violation, by name (campaign_result.py). After an
error the key is in doubt: it may exist or not, but is never partial.
"""

import itertools
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from m5ws.errors import CorruptObject, M5Error, NotFound, ObjectExists
from m5ws.records.base import Digest
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects, key
from m5ws.store.interface import ObjectStat, ObjectStore
from tests.support.campaigns.campaign_result import Result

_SIZES = (0, 1, 100, 100, 5_000, 5_000, 70_000, 300_000)
_OPERATIONS = {
    "put": 6,
    "get": 6,
    "range": 4,
    "reference": 3,
    "absent": 1,
    "stat": 2,
    "list": 1,
    "names": 1,
    "race": 2,
    "publish": 2,
}
Open = Callable[[], ObjectStore]
"""Opens the store as a new client."""


class Campaign:
    """Operations by `workers` threads, each with its own client, and the known state of the keys."""

    def __init__(self, opened: Open, *, operations: int, seed: int, workers: int = 8, misleading: bool = False) -> None:
        self.result = Result(operations=operations, seed=seed, misleading=misleading)
        self._open = opened
        self._workers = workers
        self._lock = threading.Lock()
        self._local = threading.local()
        self._numbers = itertools.count()
        self._written: dict[Digest, bytes] = {}
        self._doubtful: dict[Digest, bytes] = {}
        self._owned: dict[str, bytes] = {}
        self._raced: dict[str, set[bytes]] = {}
        self._references: dict[str, list[Digest]] = {}

    def run(self, *, quiet: Callable[[], None] = lambda: None) -> Result:
        """Run all operations, then make the network `quiet`, read everything once more, and return the result."""
        began = time.monotonic()
        with ThreadPoolExecutor(self._workers) as pool:
            for _ in pool.map(self._operation, range(self.result.operations)):
                pass
        self.result.seconds = time.monotonic() - began
        quiet()
        self._verify()
        return self.result

    @property
    def _objects(self) -> Objects:
        """This thread's client."""
        if not hasattr(self._local, "objects"):
            self._local.objects = Objects(self._open(), Format())
        objects: Objects = self._local.objects
        return objects

    def _operation(self, number: int) -> None:
        rng = random.Random(f"{self.result.seed}/{number}")
        name = rng.choices(list(_OPERATIONS), list(_OPERATIONS.values()))[0]
        began, failure = time.monotonic(), ""
        try:
            getattr(self, f"_{name}")(rng)
        except M5Error as error:
            failure = type(error).__name__
            if not str(error):
                self._violated("unclear error", name, f"{failure} says nothing")
            if isinstance(error, CorruptObject) and not self.result.misleading:
                self._violated("said damaged", name, str(error))
        except Exception as error:  # noqa: BLE001  # an unclear error is a violation
            failure = "unclear"
            self._violated("unclear error", name, f"{error!r}\n{traceback.format_exc()}")
        with self._lock:
            self.result.ended(name, failure, time.monotonic() - began)

    def _violated(self, name: str, operation: str, what: str) -> None:
        with self._lock:
            self.result.violated(name, operation, what)

    def _put(self, rng: random.Random) -> Digest:
        data = rng.randbytes(rng.choice(_SIZES))
        objects = self._objects
        digest = objects.digest(data)
        with self._lock:
            self._doubtful[digest] = data
        objects.put(data)
        with self._lock:
            self._written[digest] = data
        return digest

    def _get(self, rng: random.Random) -> None:
        if known := self._known(rng):
            with self._there("get", known[0]):
                if self._objects.get(known[0]) != known[1]:
                    self._violated("wrong bytes", "get", known[0])

    def _range(self, rng: random.Random) -> None:
        if not (known := self._known(rng)) or not known[1]:
            return
        start = rng.randrange(len(known[1]))
        part = known[1][start : start + rng.randint(1, len(known[1]))]
        slice_ = Slice(object=known[0], offset=start, size_bytes=len(part), digest=self._objects.digest(part))
        with self._there("range", known[0]):
            if self._objects.read(slice_) != part:
                self._violated("wrong bytes", "range", f"{known[0]} at {start}")

    def _reference(self, rng: random.Random) -> None:
        """Read a name. No digest covers its bytes, so the store itself must not return others."""
        with self._lock:
            known = rng.choice(list(self._owned.items())) if self._owned else None
        if known:
            with self._there("reference", known[0]):
                data = self._objects.store.get(known[0])
                if data != known[1]:
                    self._violated("wrong bytes", "reference", f"{known[0]}: {data[:40]!r} ({len(data)} bytes)")

    def _absent(self, rng: random.Random) -> None:
        digest = self._objects.digest(rng.randbytes(16))
        try:
            self._objects.get(digest)
        except NotFound:
            return
        self._violated("made up", "absent", digest)

    def _stat(self, rng: random.Random) -> None:
        if known := self._known(rng):
            stat = self._objects.store.stat(key(known[0]))
            if stat is None:
                self._violated("said absent", "stat", known[0])
            elif stat.size_bytes != len(known[1]):
                self._violated("made up", "stat", f"{stat} has {len(known[1])} bytes")

    def _list(self, rng: random.Random) -> None:
        prefix = rng.choice(("objects/", f"objects/{rng.randrange(16):x}", "races/"))
        with self._lock:
            there = {key(digest): len(data) for digest, data in self._written.items()} | {
                name: len(data) for name, data in self._owned.items()
            }
        sizes = {stat.key: stat.size_bytes for stat in self._ordered(self._objects.store.list(prefix), prefix)}
        for name in there.keys() - sizes.keys():
            if name.startswith(prefix):
                self._violated("said absent", "list", f"{name} below {prefix}")
        for name, size_bytes in sizes.items():
            if size_bytes not in self._sizes(name):
                self._violated("made up", "list", f"{name} with {size_bytes} bytes below {prefix}")

    def _ordered(self, stats: Iterable[ObjectStat], prefix: str) -> list[ObjectStat]:
        listed = list(stats)
        keys = [stat.key for stat in listed]
        if keys != sorted(set(keys)):
            self._violated("made up", "list", f"{prefix} not in order, or twice")
        return listed

    def _names(self, rng: random.Random) -> None:
        with self._lock:
            there = {digest[:2] for digest in self._written}
        names = self._objects.store.names("objects/")
        with self._lock:
            known = {digest[:2] for digest in self._doubtful}
        if there - set(names):
            self._violated("said absent", "names", f"{sorted(there - set(names))}")
        if set(names) - known or list(names) != sorted(set(names)):
            self._violated("made up", "names", str(names))

    def _sizes(self, name: str) -> set[int]:
        """Return the possible sizes of a key's object, from everything that was ever sent."""
        with self._lock:
            if name.startswith("objects/"):
                digest = name.rpartition("/")[2]
                return {len(known[digest]) for known in (self._doubtful, self._written) if digest in known}
            return {len(data) for data in self._raced.get(name, ())}

    def _race(self, rng: random.Random) -> None:
        """Let two clients create one key with different bytes at the same moment."""
        name = f"races/{self._number():06d}"
        claims = [rng.randbytes(rng.choice((20, 2_000))) for _ in range(2)]
        with self._lock:
            self._raced[name] = set(claims)
        gate, outcomes = threading.Barrier(2), [""] * 2
        stores = (self._objects.store, self._open())

        def write(which: int) -> None:
            gate.wait()
            try:
                stores[which].create(name, claims[which])
                outcomes[which] = "won"
            except ObjectExists:
                outcomes[which] = "lost"
            except M5Error as error:
                outcomes[which] = type(error).__name__
            except Exception as error:  # noqa: BLE001  # a thread's error is to be seen, whatever it is
                outcomes[which] = f"unclear: {error!r}"

        rival = threading.Thread(target=write, args=(1,))
        rival.start()
        write(0)
        rival.join()
        self._judge(name, claims, outcomes)

    def _judge(self, name: str, claims: list[bytes], outcomes: list[str]) -> None:
        if outcomes == ["won", "won"]:
            self._violated("two winners", "race", name)
        elif outcomes == ["lost", "lost"]:
            self._violated("no winner", "race", name)
        elif any(outcome.startswith("unclear") for outcome in outcomes):
            self._violated("unclear error", "race", f"{name}: {outcomes}")
        if "won" in outcomes:
            with self._lock:
                self._owned[name] = claims[outcomes.index("won")]
        for outcome in outcomes:
            if outcome not in ("won", "lost"):
                raise RaceFailed(f"{name}: {outcome}")

    def _publish(self, rng: random.Random) -> None:
        """Write three objects, and then the reference that names them."""
        digests = [self._put(rng) for _ in range(3)]
        name = f"references/{self._number():06d}"
        with self._lock:
            self._references[name] = digests
        self._objects.store.create(name, "\n".join(digests).encode())
        with self._lock:
            self._owned[name] = "\n".join(digests).encode()

    def _number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def _known(self, rng: random.Random) -> tuple[Digest, bytes] | None:
        with self._lock:
            return rng.choice(list(self._written.items())) if self._written else None

    @contextmanager
    def _there(self, operation: str, digest: Digest) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            self._violated("said absent", operation, f"{digest}: {error}")
            raise

    def _verify(self) -> None:
        """Read everything over a quiet network: reported writes are there, and keys in doubt are whole or absent."""
        objects = Objects(self._open(), Format())
        with ThreadPoolExecutor(self._workers) as pool:
            for digest, data in self._written.items():
                pool.submit(self._verify_object, objects, digest, data)
            for name in self._raced.keys() | self._references.keys():
                pool.submit(self._verify_name, objects, name)
        for name in objects.store.names("objects/"):
            if name not in {digest[:2] for digest in self._doubtful}:
                self._violated("made up", "verified", f"objects/{name}")

    def _verify_object(self, objects: Objects, digest: Digest, data: bytes) -> None:
        try:
            if objects.get(digest) != data:
                self._violated("wrong bytes", "verified", digest)
        except Exception as error:  # noqa: BLE001  # whatever it is, the object is not to be had
            self._violated("lost", "verified", f"{digest}: {error!r}")

    def _verify_name(self, objects: Objects, name: str) -> None:
        try:
            data = objects.store.get(name)
        except NotFound:
            if name in self._owned:
                self._violated("lost", "verified", f"{name} is absent")
            return
        except Exception as error:  # noqa: BLE001  # as above
            self._violated("lost", "verified", f"{name}: {error!r}")
            return
        if name in self._owned and data != self._owned[name]:
            self._violated("lost", "verified", f"{name} has other bytes")
        if name in self._raced and data not in self._raced[name]:
            self._violated("made up", "verified", name)
        for digest in self._references.get(name, ()):
            try:
                objects.get(digest)
            except M5Error as error:
                self._violated("half published", "verified", f"{name} names {digest}: {error!r}")


class RaceFailed(M5Error):
    """A racing writer failed, so its key is in doubt."""
