"""A store in S3 that notes what it is asked, so that the same questions can be asked again without it."""

from collections.abc import Callable, Iterable, Iterator

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
    repo.objects.wanted = wanted = set[Digest]()
    return repo, lambda: noting.witnesses(wanted)


class S3Watched(S3Store):
    """`S3Store` on a store that was joined, by the same connection.

    Which of many objects were wanted is told by `repository.Objects`, which asks for them.
    """

    def __init__(self, store: S3Store) -> None:
        super().__init__(store.location, connection=store.connection)
        self._unmoved = True
        # Asked before this began.
        self._asked: set[inquiry.Question] = {(inquiry.FILE, FORMAT), (inquiry.BELOW, plans.PREFIX)}

    def witnesses(self, wanted: Iterable[Digest]) -> list[list[again.Witness]]:
        """Return what tells whether the store would say the same, in ways of which each does; the first to try first.

        `wanted` is which objects were to be there. No way if the store was written to.
        """
        if not self._unmoved:
            return []
        asked = [*self._asked, *((inquiry.OBJECT, object_key(digest)) for digest in wanted)]
        server = (self.connection.bucket_url, self.location.prefix, self.connection.region)
        inquiries = (
            inquiry.Inquiry(how, *server, self.connection.authorities, asked) for how in (inquiry.WHOLE, inquiry.EACH)
        )
        return [[(again.BUCKET, one.text())] for one in inquiries]

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._asked.add((_kind(key), key))
        return super().get(key, start, length)

    def flow(self, key: str, sink: Callable[[Buffer], object]) -> None:
        self._asked.add((_kind(key), key))
        super().flow(key, sink)

    def stat(self, key: str) -> ObjectStat | None:
        self._asked.add((inquiry.OBJECT, key))
        return super().stat(key)

    def names(self, prefix: str) -> tuple[str, ...]:
        self._asked.add((inquiry.BELOW, prefix))
        return super().names(prefix)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        if not prefix.startswith(_OBJECTS):
            self._asked.add((inquiry.BELOW, prefix))
        return super().list(prefix)

    def create(self, key: str, data: Buffer) -> None:
        self._unmoved = False
        super().create(key, data)

    def delete(self, key: str) -> None:
        self._unmoved = False
        super().delete(key)


def _kind(key: str) -> str:
    return inquiry.OBJECT if key.startswith(_OBJECTS) else inquiry.FILE
