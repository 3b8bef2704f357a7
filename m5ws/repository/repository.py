"""A store, typed: chunks, trees, snapshots, runs, ledgers and checkpoints, by the format of docs/format.md.

Invariant: leaves are written before what names them, and a reference is written last. So whatever is
killed when, everything that can be reached is whole.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from m5ws.errors import NotFound, ObjectExists, UsageError
from m5ws.records import codec
from m5ws.records.store import Format
from m5ws.repository import gc_plans
from m5ws.repository.files.locations import PackLocations
from m5ws.repository.gc_plans import Patience, Standings
from m5ws.repository.objects import Objects
from m5ws.store.interface import FORMAT, Homed, ObjectStore

T = TypeVar("T")
_NEW = Format(file_chunk_bytes=16 * 2**20)
"""What a store is made as that nobody has asked for anything else."""


class Repository:
    """A store together with its `format`; open it with `Repository.open` or `.create`.

    `note` is what a person should know of the store, for example that it is in another region. `locations` are the
    packs of small files, as far as this process has written trees or loaded snapshots.
    `patience` is how publishing waits for a `gc` that is in its way, where it is not as usual.
    """

    def __init__(
        self, store: ObjectStore, form: Format, note: str = "", looking: Future[Standings] | None = None
    ) -> None:
        self.store = store
        self.format = form
        self.note = note
        self.objects = Objects(store, form, self._done_plans)
        self.locations = PackLocations(self.objects)
        self._looking = looking
        self.patience: Patience | None = None

    @classmethod
    def open(cls, store: ObjectStore, *, writing: bool = False) -> "Repository":
        """Open an existing store. Raises NotFound if there is none, UnknownSchema if it is of another version.

        Who is `writing` asks for gc's plans first of all: where that is a round trip, it is made meanwhile.
        """
        looking = _begun(partial(gc_plans.look, store)) if writing and isinstance(store, Homed) else None
        try:
            data = store.get(FORMAT)
        except NotFound as error:
            raise NotFound(f"there is no m5ws store at {store.url}", hint="`m5ws init` makes one.") from error
        form = codec.decode(data, Format, f"{store.url}/{FORMAT}")
        note = store.visit(form.home_region) if isinstance(store, Homed) else ""
        return cls(store, form, note, looking)

    @classmethod
    def create(cls, store: ObjectStore, form: Format | None = None) -> "Repository":
        """Make a store, or open the one that is there. Raises UsageError if that one has another format."""
        try:
            return cls._joined(store, form)
        except NotFound:
            wanted = form or _NEW
        if isinstance(store, Homed):
            wanted = msgspec.structs.replace(wanted, home_region=store.home())
            store.probe()
        try:
            store.create(FORMAT, codec.encode(wanted))
        except ObjectExists:
            return cls._joined(store, form)
        return cls(store, wanted)

    @staticmethod
    def is_blank(store: ObjectStore, form: Format) -> bool:
        """Return whether a store in a directory has another format than `form` and holds nothing: `init` made it."""
        try:
            other = not isinstance(store, Homed) and Repository.open(store).alike != form
        except NotFound:
            return False
        return other and all(found.key == FORMAT for found in store.list(""))

    @property
    def alike(self) -> Format:
        """The format of a store that snapshots and runs of this one can go to, wherever it is."""
        return msgspec.structs.replace(self.format, home_region=None)

    def through(self, store: ObjectStore) -> "Repository":
        """Return the same store as `store` shows it, which keeps copies of it."""
        same = Repository(store, self.format, self.note, self._looking)
        same.locations = self.locations.of(same.objects)
        return same

    def _done_plans(self) -> frozenset[str]:
        looking, self._looking = self._looking, None
        return (looking.result() if looking is not None else gc_plans.look(self.store)).done

    @classmethod
    def imagined(cls, store: ObjectStore, form: Format | None = None) -> "Repository":
        """Return a store that is not there as it would be made; nothing is written."""
        return cls(store, form or _NEW)

    @classmethod
    def _joined(cls, store: ObjectStore, form: Format | None) -> "Repository":
        repository = cls.open(store, writing=True)
        wanted = form and msgspec.structs.replace(form, home_region=None)
        if wanted not in (None, repository.alike):
            raise UsageError(
                f"the store at {store.url} has another format, {repository.alike}, and {wanted} is needed",
                hint="Ids are made of the store's hash and sizes: copy into a store that is not there yet, or is "
                "empty, or have the workspace use the other store itself (`[store] url` in m5ws.toml).",
            )
        return repository


def _begun(work: Callable[[], T]) -> Future[T]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="m5ws-begin")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


__all__ = ["Repository"]
