"""A store with types: chunks, trees, snapshots, runs, ledgers and checkpoints, in the format of docs/format.md.

Invariant: objects are written before any object that names them, and a reference is written last. So everything
reachable is complete, whenever a writer is killed.
"""

import msgspec

from m5ws.errors import NotFound, ObjectExists, UnknownSchema
from m5ws.records import codec
from m5ws.records.store import Format
from m5ws.repository import gc_plans
from m5ws.repository.objects import Objects
from m5ws.store.cache.cache import CachedStore
from m5ws.store.interface import FORMAT, ObjectStore, RegionAware
from m5ws.store.listed import ListedStore

_OTHER_VERSION = (
    "Another version of m5ws created the store. With that version, `m5ws checkpoint export` writes its checkpoints as "
    "files. This version needs a store of its own: set another [store] url in m5ws.toml."
)


class Repository:
    """A store with its `format`. Use `Repository.open` or `.create`.

    `note` is a warning about the store, for example about its region. `patience` overrides how publishing
    waits for `gc`.
    """

    def __init__(self, store: ObjectStore, form: Format, note: str = "") -> None:
        self.store = store
        self.format = form
        self.note = note
        self.objects = Objects(store, form, lambda: gc_plans.read_states(store).done)
        self.snapshots: set[str] = set()
        """Snapshots that this process knows to be published. None is ever deleted."""
        self.patience: gc_plans.RetryPolicy | None = None

    @classmethod
    def open(cls, store: ObjectStore) -> "Repository":
        """Open an existing store. Raises NotFound if there is none, UnknownSchema if its version is unknown."""
        known = store.copy(FORMAT) if isinstance(store, CachedStore) else None
        try:
            data = known or store.get(FORMAT)
        except NotFound as error:
            raise NotFound(f"no m5ws store at {store.url}", hint="Run `m5ws init` to create one.") from error
        try:
            form = codec.decode(data, Format, f"{store.url}/{FORMAT}")
        except UnknownSchema as error:
            raise UnknownSchema(str(error), hint=_OTHER_VERSION) from error
        origin = store.origin if isinstance(store, CachedStore) else store
        if known is not None and isinstance(origin, RegionAware):
            # The machine has compared the region of this store before.
            origin.assume_region(form.home_region)
        note = origin.check_region(form.home_region) if isinstance(origin, RegionAware) else ""
        return cls(store, form, note)

    @classmethod
    def create(cls, store: ObjectStore, form: Format | None = None) -> "Repository":
        """Create a store, or open an existing store, whatever its format."""
        try:
            return cls.open(store)
        except NotFound:
            wanted = form or Format()
        if isinstance(store, RegionAware):
            wanted = msgspec.structs.replace(wanted, home_region=store.expected_region())
            store.probe()
        try:
            store.create(FORMAT, codec.encode(wanted))
        except ObjectExists:
            return cls.open(store)
        return cls(store, wanted)

    @property
    def compatible_format(self) -> Format:
        """The store's format without its home region.

        Snapshots and runs can be copied between stores where it is equal.
        """
        return msgspec.structs.replace(self.format, home_region=None)

    def with_store(self, store: ObjectStore) -> "Repository":
        """Return the same repository through `store`, which is a cache of its store."""
        repository = Repository(store, self.format, self.note)
        repository.snapshots = self.snapshots
        return repository

    def listed(self, prefix: str) -> "Repository":
        """Return this repository for readers of one prefix, which is listed once (`ListedStore`)."""
        view = self.with_store(ListedStore(self.store, prefix))
        view.objects = self.objects
        return view

    @classmethod
    def for_dry_run(cls, store: ObjectStore, form: Format | None = None) -> "Repository":
        """Return the repository that `create` would make, without writing. For dry runs."""
        return cls(store, form or Format())
