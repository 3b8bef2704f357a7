"""A store in S3 that notes what it is asked, so that the same questions can be asked again without it."""

from collections.abc import Callable, Iterator, Mapping

from m5ws import again, inquiry
from m5ws.ports import Buffer, ObjectStat
from m5ws.records import Digest
from m5ws.repository import FORMAT, Repository, plans
from m5ws.repository.objects import key as object_key
from m5ws.store.cache import Cached
from m5ws.store.s3 import S3Store

_OBJECTS = "objects/"


def watched(repo: Repository) -> tuple[Repository, Callable[[], list[list[again.Witness]]]]:
    """Return a repository in S3, through a cache or not, and what tells the witnesses of all that it is asked."""
    store = repo.store
    inner = store.behind if isinstance(store, Cached) else store
    assert isinstance(inner, S3Store)
    noting = S3Watched(inner)
    repo = repo.through(store.before(noting) if isinstance(store, Cached) else noting)
    repo.objects.wanted = wanted = dict[Digest, int]()
    return repo, lambda: noting.witnesses(wanted)


class S3Watched(S3Store):
    """`S3Store` on a store that was joined, by the same connection.

    Which objects were wanted is told by `repository.Objects`, which asks for them: of many a cache has a copy.
    """

    def __init__(self, store: S3Store) -> None:
        super().__init__(store.location, connection=store.connection)
        self._unmoved = True
        # Asked before this began.
        self._asked: set[tuple[str, str]] = {(inquiry.FILE, FORMAT), (inquiry.BELOW, plans.PREFIX)}

    def witnesses(self, wanted: Mapping[Digest, int]) -> list[list[again.Witness]]:
        """Return what tells whether the store would say the same, in two ways; the first is the cheaper one.

        `wanted` is which objects were to be there, and of what least length. No way if the store was written to.
        """
        if not self._unmoved:
            return []
        objects = ((inquiry.OBJECT, object_key(digest), size_bytes) for digest, size_bytes in wanted.items())
        asked = [*((kind, key, 0) for kind, key in self._asked), *objects]
        server = (self.connection.bucket_url, self.location.prefix, self.connection.region, self.connection.authorities)
        inquiries = (inquiry.Inquiry(how, *server, asked) for how in (inquiry.WHOLE, inquiry.EACH))
        return [[(again.BUCKET, one.text())] for one in inquiries]

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._note(inquiry.FILE, key)
        return super().get(key, start, length)

    def stat(self, key: str) -> ObjectStat | None:
        self._note(inquiry.FILE, key)
        return super().stat(key)

    def names(self, prefix: str) -> tuple[str, ...]:
        self._note(inquiry.BELOW, prefix)
        return super().names(prefix)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        self._note(inquiry.BELOW, prefix)
        return super().list(prefix)

    def create(self, key: str, data: Buffer) -> None:
        self._unmoved = False
        super().create(key, data)

    def delete(self, key: str) -> None:
        self._unmoved = False
        super().delete(key)

    def _note(self, kind: str, key: str) -> None:
        if not key.startswith(_OBJECTS):
            self._asked.add((kind, key))
