"""A store, typed: chunks, trees, snapshots, runs, ledgers and checkpoints, by the format of docs/format.md.

Invariant: leaves are written before what names them, and a reference is written last. So whatever is
killed when, everything that can be reached is whole.
"""

from m5ws import codec
from m5ws.errors import NotFound, ObjectExists, UsageError
from m5ws.ports import ObjectStore
from m5ws.records import Format
from m5ws.repository.objects import Objects

_FORMAT = "format"


class Repository:
    """A store together with its `format`; open it with `Repository.open` or `.create`."""

    def __init__(self, store: ObjectStore, form: Format) -> None:
        self.store = store
        self.format = form
        self.objects = Objects(store, form)

    @classmethod
    def open(cls, store: ObjectStore) -> "Repository":
        """Open an existing store. Raises NotFound if there is none, UnknownSchema if it is of another version."""
        try:
            data = store.get(_FORMAT)
        except NotFound as error:
            raise NotFound(f"there is no m5ws store at {store.url}", hint="`m5ws init` makes one.") from error
        return cls(store, codec.decode(data, Format, f"{store.url}/{_FORMAT}"))

    @classmethod
    def create(cls, store: ObjectStore, form: Format | None = None) -> "Repository":
        """Make a store, or open the one that is there. Raises UsageError if that one has another format."""
        wanted = form or Format()
        try:
            store.create(_FORMAT, codec.encode(wanted))
        except ObjectExists:
            repository = cls.open(store)
            if form is not None and repository.format != form:
                raise UsageError(f"the store at {store.url} has another format: {repository.format}") from None
            return repository
        return cls(store, wanted)

    @classmethod
    def imagined(cls, store: ObjectStore) -> "Repository":
        """Return a store that is not there as it would be made; nothing is written."""
        return cls(store, Format())


__all__ = ["Repository"]
