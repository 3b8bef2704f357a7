"""The clients of an S3 store, made when they are first needed, and the credentials they share.

Credentials come from boto3's chain and are asked for again every half minute, so that what it refreshes in the middle
of long work reaches obstore too. No client retries anything itself: s3_retry does, in one place. botocore is loaded
only where it is needed: for credentials that are not in plain variables, for an endpoint that AWS's rules give, to ask
for the bucket's region, which a workspace remembers, and when something goes wrong.
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
from m5ws.store.s3.variables import Plain, bundle, plain

if TYPE_CHECKING:
    from m5ws.store.s3.control import Control

T = TypeVar("T")
_MIB = 2**20
_FLOOR_BYTES_PER_S = 1 * _MIB
"""Slower than this over a whole transfer, obstore's connection is given up; boto3 then waits for progress alone."""
_CLASSES = (1 * _MIB, 8 * _MIB, 64 * _MIB, 1024 * _MIB)
_CONNECT_S = 10.0
_RENEW_EVERY_S = 2.0
# obstore keeps credentials until five minutes before they expire: so it asks again after half a minute.
_KEPT = dt.timedelta(minutes=5, seconds=30)
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


class Connection:
    """A bucket's clients. Safe to be used by many threads; not across a fork, after which it is to be made anew."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._lock = threading.RLock()
        self._chain: Control | None = None
        self._client: Any = None
        self._data: dict[tuple[int, bool], DataClient] = {}
        self._renewed_s = float("-inf")
        self._bucket_region: str | None = None
        self._asked = False

    @property
    def _settings(self) -> "Plain | Control":
        """Where credentials and what goes with them are found: in variables alone, or by boto3's whole chain."""
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
        """The region that this machine is configured for, by variable or profile; None if it is not."""
        return self._settings.here

    @property
    def bucket_region(self) -> str | None:
        """The region that the server says the bucket is in; None where servers have no regions. Asked once, or never
        where it is remembered from before.

        Raises BucketMissing, Passing and what else `translate` makes of an answer.
        """
        with self._lock:
            if not self._asked:
                wanted = self.location.options.region or self.here or "us-east-1"
                self.remember(self._control.ask_region(wanted))
            return self._bucket_region

    def remember(self, bucket_region: str | None) -> None:
        """Take a bucket's region as known: no bucket ever moves."""
        self._bucket_region, self._asked = bucket_region, True

    def forget(self) -> None:
        """Ask for the bucket's region again when it is next needed."""
        self._asked = False

    @property
    def region(self) -> str:
        """The region that requests are signed for."""
        return self.bucket_region or self.location.options.region or self.here or "us-east-1"

    def data(self, size_bytes: int, *, reading: bool) -> tuple[DataClient, float]:
        """Return obstore's client for a transfer of `size_bytes`, and the seconds after which it gives up.

        A client has one time limit for all requests: there is one client for each class of sizes.
        """
        size = next((one for one in _CLASSES if size_bytes <= one), _CLASSES[-1])
        limit_s = self.location.options.stall_s + size / _FLOOR_BYTES_PER_S
        with self._lock:
            if (size, reading) not in self._data:
                self._data[size, reading] = self._data_client(limit_s, reading=reading)
            return self._data[size, reading], limit_s

    def call(self, action: str, path: str | None, ask: Callable[[Any], T]) -> T:
        """Return what `ask` reads off boto3's answer.

        Raises what `translate` makes of errors: Passing, Absent, Taken, M5Error. An answer that was cut short may look
        whole to boto3: what `ask` does not find in it is an error too.
        """
        from m5ws.store.s3 import control as s3_control

        return s3_control.call(self.location, self.control, action, path, ask)

    def renew(self) -> None:
        """Forget all credentials: the next request reads them anew. Many threads at once renew once."""
        with self._lock:
            if time.monotonic() - self._renewed_s > _RENEW_EVERY_S:
                self._renewed_s = time.monotonic()
                self._chain, self._client = None, None
                self._data.clear()

    def credentials(self) -> Any:
        """Return credentials in obstore's form, as they are now. Raises NoCredentials."""
        variables = plain()
        found = variables.credentials if variables is not None else self._control.credentials()
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": dt.datetime.now(dt.UTC) + _KEPT,
        }

    @property
    def authorities(self) -> str:
        """The file of who vouches for the server, "" for the usual ones."""
        return self._settings.authorities or ""

    @property
    def bucket_url(self) -> str:
        """Where the bucket is, as requests name it."""
        endpoint, virtual = self._endpoint()
        return endpoint.rstrip("/") if virtual else f"{endpoint.rstrip('/')}/{self.location.bucket}"

    def _endpoint(self) -> tuple[str, bool]:
        """Return where requests go, and whether that names the bucket already."""
        endpoint = self.location.options.endpoint_url or str(self.control.meta.endpoint_url)
        split = urlsplit(endpoint)
        # AWS asks for the bucket in the host's name; its certificate does not cover names with dots.
        if (split.hostname or "").endswith(_AWS_HOSTS) and "." not in self.location.bucket:
            return f"{split.scheme}://{self.location.bucket}.{split.netloc}", True
        return endpoint, False

    def _data_client(self, limit_s: float, *, reading: bool) -> DataClient:
        options = self.location.options
        endpoint, virtual = self._endpoint()
        split = urlsplit(endpoint)
        if options.integrity == "unsigned" and split.scheme != "https":
            raise UsageError(
                "[store] integrity = 'unsigned' needs https", hint="Over http nothing else would notice damaged bytes."
            )
        config: dict[str, Any] = {
            "endpoint": endpoint,
            "region": self.region,
            "virtual_hosted_style_request": virtual,
            # obstore reads variables of its own for these; both clients are to do the same.
            "skip_signature": False,
            "unsigned_payload": options.integrity == "unsigned"
            or (options.integrity == "crc64nvme" and split.scheme == "https"),
        }
        if options.integrity != "unsigned":
            # A checksum is what Object Lock requires, and what the server can vouch for later.
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
            credential_provider=_Asking(self),
        )

    def _client_options(self, scheme: str, limit_s: float, checksum: str | None, reading: bool) -> Any:
        options: dict[str, Any] = {
            "allow_http": scheme == "http",
            "timeout": dt.timedelta(seconds=limit_s),
            "connect_timeout": dt.timedelta(seconds=_CONNECT_S),
            "pool_max_idle_per_host": "64",
        }
        if reading:
            # Not for writing: obstore counts it from before an upload, which gives no sign of life until its end.
            options["read_timeout"] = dt.timedelta(seconds=self.location.options.stall_s)
        elif checksum:
            # Some servers look at the checksum, or at Object Lock's need of one, by this header alone.
            options["default_headers"] = {"x-amz-sdk-checksum-algorithm": checksum}
        authorities = self._settings.authorities
        if authorities and scheme == "https":
            options["root_certificate"] = bundle(authorities)
        return options


class _Asking:
    """Asks a connection for credentials, without keeping it: Python cannot see what obstore keeps, so that a circle
    through it, with botocore's client of a dozen MiB in it, would never be given back.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = weakref.ref(connection)

    def __call__(self) -> Any:
        connection = self._connection()
        if connection is None:
            raise RuntimeError("the store that this client is of is gone")
        return connection.credentials()
