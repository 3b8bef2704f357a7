"""Transfers to and from S3, one attempt at a time: first by obstore, then by boto3.

obstore needs a fraction of boto3's CPU time. Its errors have few types, and an upload has one time limit, whether bytes
move or not. So a request that fails in obstore is repeated with boto3, which has a code for every response and aborts
only transfers that stop or crawl.
"""

import base64
import hashlib
import io
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import obstore
from obstore import exceptions

from m5ws.store.s3.clients import Connection
from m5ws.store.s3.errors import NoSuchKey, PreconditionFailed, TransientError
from m5ws.store.traffic import traffic

LARGEST_BYTES = 64 * 2**20
_BLOCK_BYTES = 4 * 2**10
"""Small enough that a slow transfer is noticed in time after each block."""
_CRAWL_BYTES_PER_S = 16 * 2**10
Stat = tuple[int, float]
"""Size in bytes, and publication time in seconds since the epoch."""


class Upload:
    """Bytes to upload. `doubtful`: an attempt ended without a response, so the object may exist."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.doubtful = False
        self._sha256: str | None = None

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes, in base64 as S3 requires."""
        if self._sha256 is None:
            self._sha256 = base64.b64encode(hashlib.sha256(self.data).digest()).decode()
        return self._sha256

    def equals(self, data: bytes) -> bool:
        """Return True if `data` has the same bytes."""
        return memoryview(data) == self.data


class Transfer:
    """Single attempts; `s3.retry.Retrier` repeats them.

    Raises NoSuchKey, PreconditionFailed, RangeNotSatisfiable, TransientError, M5Error.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bucket = connection.location.bucket
        self._extra = _headers(connection)

    def read(self, path: str, start: int, length: int | None, *, by_boto3: bool) -> bytes:
        """Return bytes [start, start+length) of an object, after a check of their number."""
        data = self._read(path, start, length, by_boto3=by_boto3)
        traffic.add(*self._connection.route, read=len(data))
        return data

    def _read(self, path: str, start: int, length: int | None, *, by_boto3: bool) -> bytes:
        if by_boto3:
            return self._connection.call(
                "s3:GetObject", path, lambda client: self._get_object(client, path, start, length)
            )
        client = self._connection.data(LARGEST_BYTES if length is None else length, reading=True)
        options: Any = None
        if start or length is not None:
            options = {"range": {"offset": start} if length is None else (start, start + length)}
        with translated():
            result = obstore.get(client, path, options=options)
            data = bytes(result.bytes())
            return _whole(data, result.meta["size"], start, length)

    def write(self, path: str, upload: Upload, *, by_boto3: bool) -> None:
        """Put an object under a free key. Published from its success on, and possibly from its failure."""
        traffic.add(*self._connection.route, written=upload.data.nbytes)
        try:
            if by_boto3:
                self._connection.call("s3:PutObject", path, lambda client: self._put_object(client, path, upload))
            else:
                self._put(path, upload)
        except PreconditionFailed:
            raise
        except NoSuchKey as error:
            upload.doubtful = True
            raise TransientError("the bucket does not exist", unknown=True) from error
        except BaseException:
            upload.doubtful = True
            raise

    def stat(self, path: str, *, by_boto3: bool) -> Stat:
        """Return the size and time of an object, by HEAD."""
        if by_boto3:
            return self._connection.call("s3:GetObject", path, lambda client: self._head_object(client, path))
        client = self._connection.data(0, reading=True)
        with translated():
            meta = obstore.head(client, path)
            return meta["size"], meta["last_modified"].timestamp()

    def delete(self, path: str) -> None:
        """Delete an object. Rare, so boto3 is enough."""
        self._connection.call(
            "s3:DeleteObject", path, lambda client: client.delete_object(Bucket=self._bucket, Key=path)
        )

    def _put(self, path: str, upload: Upload) -> None:
        client = self._connection.data(upload.data.nbytes, reading=False)
        storage_class = self._extra.get("StorageClass")
        with translated():
            try:
                attributes: Any = {"Storage-Class": storage_class} if storage_class else None
                obstore.put(client, path, upload.data, mode="create", use_multipart=False, attributes=attributes)
            except exceptions.AlreadyExistsError as error:
                raise PreconditionFailed from error

    def _put_object(self, client: Any, path: str, upload: Upload) -> None:
        body = _Body(upload.data, self._connection.location.options.stall_s)
        checksum = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": upload.sha256}
        client.put_object(Bucket=self._bucket, Key=path, Body=body, IfNoneMatch="*", **checksum, **self._extra)

    def _head_object(self, client: Any, path: str) -> Stat:
        head = client.head_object(Bucket=self._bucket, Key=path)
        if "ETag" not in head:
            raise ValueError("the headers of the response are incomplete")
        return int(head["ContentLength"]), head["LastModified"].timestamp()

    def _get_object(self, client: Any, path: str, start: int, length: int | None) -> bytes:
        span = {}
        if start or length is not None:
            span = {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"}
        response = client.get_object(Bucket=self._bucket, Key=path, **span)
        pace, blocks, moved = _Pace(self._connection.location.options.stall_s), [], 0
        with closing(response["Body"]) as body:
            while block := body.read(_BLOCK_BYTES):
                blocks.append(block)
                moved += len(block)
                pace.check(moved)
        _, _, total = response.get("ContentRange", "").partition("/")
        size_bytes = int(total) if total else int(response["ContentLength"])
        return _whole(b"".join(blocks), size_bytes, start, length)


class _Pace:
    """Aborts a slow transfer. Socket timeouts abort only a transfer that stops."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._began_s = time.monotonic()

    def check(self, moved_bytes: int) -> None:
        took_s = time.monotonic() - self._began_s
        if took_s > self._stall_s and moved_bytes < _CRAWL_BYTES_PER_S * took_s:
            raise TransientError(f"{moved_bytes} bytes in {took_s:.0f} s")


class _Body(io.RawIOBase):
    """Bytes as a file, without a copy. boto3 reads it to send it, which shows the progress of the upload."""

    def __init__(self, data: memoryview, stall_s: float) -> None:
        self._data = data
        self._stall_s = stall_s
        self._at = 0
        self._pace = _Pace(stall_s)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._data.nbytes)[whence]
        self._pace = _Pace(self._stall_s)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        self._pace.check(self._at)
        end = self._data.nbytes if size < 0 else min(self._data.nbytes, self._at + size)
        block = bytes(self._data[self._at : end])
        self._at = end
        return block


@contextmanager
def translated() -> Iterator[None]:
    """Translate obstore's errors into errors of the store, by their type. Errors without a type become `unknown`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoSuchKey from error
    except exceptions.BaseError as error:
        raise TransientError(type(error).__name__, unknown=True) from error


def _whole(data: bytes, size_bytes: int, start: int, length: int | None) -> bytes:
    """Return `data`. Raises TransientError if it is shorter than the requested part of the object."""
    wanted = size_bytes - start if length is None else min(length, size_bytes - start)
    if len(data) != wanted:
        raise TransientError(f"{len(data)} bytes instead of {wanted}")
    return data


def _headers(connection: Connection) -> dict[str, str]:
    """Return the headers of every upload, by boto3's names."""
    options = connection.location.options
    named = {
        "ServerSideEncryption": options.sse,
        "SSEKMSKeyId": options.sse_kms_key,
        "StorageClass": options.storage_class,
    }
    return {name: value for name, value in named.items() if value}
