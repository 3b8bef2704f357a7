"""The clients of an S3 store, created on first use, and the credentials they share.

Credentials come from boto3's chain and are read again every half minute, so that obstore gets refreshed credentials
during long work. No client retries; `s3.retry` does. botocore takes long to import, and is only loaded for these cases:
credentials outside of plain variables, an endpoint by AWS's rules, an unknown bucket region, and failed requests.
"""

import datetime as dt
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from obstore.store import S3Store as DataClient

from m5ws.errors import UsageError
from m5ws.store.s3.location import Location
from m5ws.store.s3.variables import Credentials, Plain, bundle, plain

if TYPE_CHECKING:
    from m5ws.store.s3.control import Control

T = TypeVar("T")
_MIB = 2**20
_FLOOR_BYTES_PER_S = 1 * _MIB
"""obstore's transfers that are slower than this on average are aborted. boto3 then waits as long as bytes arrive."""
_CLASSES = (1 * _MIB, 8 * _MIB, 64 * _MIB, 1024 * _MIB)
_CONNECT_S = 10.0
_RENEW_EVERY_S = 2.0
# obstore uses credentials until five minutes before they expire, so it requests them again after half a minute.
_KEPT = dt.timedelta(minutes=5, seconds=30)
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


class Connection:
    """A bucket's clients. Safe in several threads; create a new connection after a fork."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._lock = threading.RLock()
        self._chain: Control | None = None
        self._client: Any = None
        self._data: dict[tuple[int, bool], DataClient] = {}
        self._renewed_s = float("-inf")
        self._has_others = False
        self._bucket_region: str | None = None
        self._asked = False

    @property
    def _settings(self) -> "Plain | Control":
        """Source of credentials and settings: plain variables, or else boto3's whole chain."""
        return plain() or self._control

    @property
    def _control(self) -> "Control":
        from m5ws.store.s3.control import Control

        with self._lock:
            if self._chain is None:
                self._chain = Control(self.location)
            return self._chain

    @property
    def control(self) -> Any:
        """boto3's client, in the bucket's region."""
        with self._lock:
            if self._client is None:
                self._client = self._control.client(self.region)
            return self._client

    @property
    def here(self) -> str | None:
        """The region that this machine is configured for, by variable or profile; None if there is none."""
        return self._settings.here

    @property
    def bucket_region(self) -> str | None:
        """The bucket's region as reported by the server; None if the server has no regions.

        Requested once, or never if it is remembered. Raises BucketMissing, TransientError and the other errors of
        `translate`.
        """
        with self._lock:
            if not self._asked:
                wanted = self.location.options.region or self.here or "us-east-1"
                self.remember(self._control.ask_region(wanted))
            return self._bucket_region

    def remember(self, bucket_region: str | None) -> None:
        """Use a known region. A bucket never moves."""
        self._bucket_region, self._asked = bucket_region, True

    def forget(self) -> None:
        """Request the bucket's region again when it is next needed."""
        self._asked = False

    @property
    def region(self) -> str:
        """The region that requests are signed for."""
        return self.bucket_region or self.location.options.region or self.here or "us-east-1"

    @property
    def route(self) -> tuple[str | None, str | None]:
        """The regions of the bucket and of this machine, as far as they are known without a request."""
        return self._bucket_region or self.location.options.region, self.here

    def data(self, size_bytes: int, *, reading: bool) -> DataClient:
        """Return obstore's client for a transfer of `size_bytes`.

        A client has one time limit for all its requests, so there is one client for each size class.
        """
        size = next((limit for limit in _CLASSES if size_bytes <= limit), _CLASSES[-1])
        limit_s = self.location.options.stall_s + size / _FLOOR_BYTES_PER_S
        with self._lock:
            if (size, reading) not in self._data:
                self._data[size, reading] = self._data_client(limit_s, reading=reading)
            return self._data[size, reading]

    def call(self, action: str, path: str | None, ask: Callable[[Any], T]) -> T:
        """Return the result of `ask`, which makes a request with boto3's client.

        Raises the errors of `translate`: TransientError, NoSuchKey, PreconditionFailed, M5Error. boto3 can accept a
        truncated response; a field that `ask` misses in it is an error too.
        """
        from m5ws.store.s3 import answers

        client = self.control
        try:
            return ask(client)
        except answers.FAILURES as error:
            raise answers.translate(error, self.location, action, path) from error

    def renew(self) -> bool:
        """Discard all credentials, so that the next request reads them again. Return False if there are no others.

        A role gets others in time. Keys in variables or in a file are read again. Concurrent calls of many threads
        count once. Raises NoCredentials.
        """
        with self._lock:
            if time.monotonic() - self._renewed_s > _RENEW_EVERY_S:
                self._renewed_s = time.monotonic()
                refused = self._current()
                self._chain, self._client = None, None
                self._data.clear()
                self._has_others = self._current() != refused or (plain() is None and self._control.is_renewable)
            return self._has_others

    def _current(self) -> Credentials:
        variables = plain()
        return variables.credentials if variables is not None else self._control.credentials()

    def credentials(self) -> Any:
        """Return the current credentials in obstore's form. Raises NoCredentials."""
        current = self._current()
        return {
            "access_key_id": current.access_key,
            "secret_access_key": current.secret_key,
            "token": current.token,
            "expires_at": dt.datetime.now(dt.UTC) + _KEPT,
        }

    def _endpoint(self) -> tuple[str, bool]:
        """Return the endpoint, and True if its host name contains the bucket."""
        endpoint = self.location.options.endpoint_url or str(self.control.meta.endpoint_url)
        split = urlsplit(endpoint)
        # AWS expects the bucket in the host name. Its certificate does not cover names with dots.
        if (split.hostname or "").endswith(_AWS_HOSTS) and "." not in self.location.bucket:
            return f"{split.scheme}://{self.location.bucket}.{split.netloc}", True
        return endpoint, False

    def now(self) -> float:
        """Return the time in the server's answer to an unsigned request, in seconds; without one, this machine's time.

        obstore's answers have no time, and an import of botocore costs more than the request.
        """
        import ssl
        import urllib.error
        import urllib.request
        from email.utils import parsedate_to_datetime

        endpoint, _ = self._endpoint()  # Only http and https get here.
        asked = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310
        trusted = ssl.create_default_context(cafile=self._settings.authorities)
        try:
            try:
                answer = urllib.request.urlopen(asked, timeout=_CONNECT_S, context=trusted)  # noqa: S310
            except urllib.error.HTTPError as refused:
                answer = refused
            with answer:
                return parsedate_to_datetime(answer.headers["Date"]).timestamp()
        except (OSError, ValueError, TypeError):
            return time.time()

    def _data_client(self, limit_s: float, *, reading: bool) -> DataClient:
        options = self.location.options
        endpoint, virtual = self._endpoint()
        split = urlsplit(endpoint)
        if options.integrity == "unsigned" and split.scheme != "https":
            raise UsageError(
                "[store] integrity = 'unsigned' needs https",
                hint="Use https or another integrity: over http, damaged bytes would not be detected.",
            )
        config: dict[str, Any] = {
            "endpoint": endpoint,
            "region": self.region,
            "virtual_hosted_style_request": virtual,
            # Without these, obstore reads environment variables of its own. Both clients must behave alike.
            "skip_signature": False,
            "unsigned_payload": options.integrity == "unsigned"
            or (options.integrity == "crc64nvme" and split.scheme == "https"),
        }
        if options.integrity != "unsigned":
            # Object Lock requires a checksum, and `fsck` reads it later.
            config["checksum_algorithm"] = "SHA256" if options.integrity == "signed" else "CRC64NVME"
        if options.sse:
            config["server_side_encryption"] = options.sse
        if options.sse_kms_key:
            config["sse_kms_key_id"] = options.sse_kms_key
        return DataClient(
            self.location.bucket,
            config=config,  # type: ignore[arg-type]
            client_options=self._client_options(split.scheme, limit_s, config.get("checksum_algorithm"), reading),
            retry_config={"max_retries": 0},
            credential_provider=_CredentialSource(self),
        )

    def _client_options(self, scheme: str, limit_s: float, checksum: str | None, reading: bool) -> Any:
        options: dict[str, Any] = {
            "allow_http": scheme == "http",
            "timeout": dt.timedelta(seconds=limit_s),
            "connect_timeout": dt.timedelta(seconds=_CONNECT_S),
            "pool_max_idle_per_host": "64",
        }
        if reading:
            # Not for uploads: obstore's read timeout would cover the whole upload, which returns nothing until its end.
            options["read_timeout"] = dt.timedelta(seconds=self.location.options.stall_s)
        elif checksum:
            # Some servers detect the checksum, or Object Lock's need for one, only by this header.
            options["default_headers"] = {"x-amz-sdk-checksum-algorithm": checksum}
        authorities = self._settings.authorities
        if authorities and scheme == "https":
            options["root_certificate"] = bundle(authorities)
        return options


class _CredentialSource:
    """Gets credentials from a connection through a weak reference.

    Python's garbage collector cannot see references held by obstore. A cycle through it would never be freed, with the
    dozen MiB of botocore's client.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = weakref.ref(connection)

    def __call__(self) -> Any:
        connection = self._connection()
        if connection is None:
            raise RuntimeError("the store of this client was closed")
        return connection.credentials()
