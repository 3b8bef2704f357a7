"""A real S3 server with one bucket in memory. It fails as its script demands, once for each line."""

import base64
import hashlib
import http.server
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_CODES = {
    "InternalError": 500,
    "SlowDown": 503,
    "TooManyRequests": 429,
    "RequestTimeout": 400,
    "ExpiredToken": 400,
    "ConditionalRequestConflict": 409,
    "AccessDenied": 403,
    "InvalidAccessKeyId": 403,
    "RequestTimeTooSkewed": 403,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "PreconditionFailed": 412,
    "InvalidRange": 416,
    "NotImplemented": 501,
    "XAmzContentSHA256Mismatch": 400,
    "BadDigest": 400,
}
_CHECKSUMS = {"SHA256": "x-amz-checksum-sha256", "CRC64NVME": "x-amz-checksum-crc64nvme"}


class ScriptedS3:
    """`faults` are taken from the front: an error code of S3, or the name of another failure (`_Handler`).

    While it `keeps_checksums`, it keeps the checksums of uploads and returns them: `checksums` has algorithm and value
    by key. Changes of `objects` by a test happen behind the server's back.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.keeps_checksums = False
        self.checksum_type = "FULL_OBJECT"
        self.checksums: dict[str, tuple[str, str]] = {}
        self.always: Callable[[str, str], str | None] = lambda _method, _key: None
        self.conditional = True
        self.region: str | None = "eu-west-1"
        self.accepted_key: str | None = None
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"s3": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def url(self, **options: str) -> str:
        query = "".join(f"&{name}={value}" for name, value in options.items())
        return f"s3://bucket/store?endpoint_url={self.endpoint}{query}"

    def count(self, method: str) -> int:
        """Return the number of requests for objects with a method."""
        return sum(one == method and key != "" for one, key, _ in self.requests)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """With the default of 5, some of many simultaneous clients would reconnect only after a second."""


def _cut(path: str, begin: int, delimiter: str | None) -> str:
    """Return a path up to the first delimiter after a prefix of length `begin`."""
    place = path.find(delimiter, begin) if delimiter else -1
    return path if place < 0 else path[: place + 1]


def _version(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


class _Handler(http.server.BaseHTTPRequestHandler):
    s3: ScriptedS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Otherwise a body waits 40 ms for the client to acknowledge the headers."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._serve()

    do_GET = do_PUT = do_DELETE = do_HEAD  # noqa: N815

    def _serve(self) -> None:
        key = urlsplit(self.path).path.removeprefix("/bucket").removeprefix("/").removeprefix("store/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.s3.requests.append((self.command, key, headers))
        accepted = self.s3.accepted_key
        if accepted is not None and f"Credential={accepted}/" not in headers.get("authorization", ""):
            return self._refuse("ExpiredToken")
        fault = self.s3.always(self.command, key)
        if fault is None and self.s3.faults and (key or "list-type=2" in self.path):
            fault = self.s3.faults.pop(0)
        return self._act(key, body, headers, fault)

    def _act(self, key: str, body: bytes, headers: dict[str, str], fault: str | None) -> None:
        match fault:
            case None | "half" | "flip":
                pass
            case "reset":
                return self._reset()
            case "lost":  # done, but the response is lost
                self._put(key, body)
                return self._reset()
            case "overtaken":  # another writer was first, and the response is lost
                self._put(key, b"another's")
                return self._reset()
            case "stall":
                self.close_connection = True
                self.s3.closing.wait(30)
                return None
            case "damage":
                body = bytes([body[0] ^ 1]) + body[1:]
            case _:
                return self._refuse(fault)
        if not key:
            return self._answer(200, self._listing() if self.command == "GET" else b"", half=fault == "half")
        return self._put_checked(key, body, headers) if self.command == "PUT" else self._rest(key, headers, fault)

    def _put_checked(self, key: str, body: bytes, headers: dict[str, str]) -> None:
        claimed = headers["x-amz-content-sha256"]
        if claimed != "UNSIGNED-PAYLOAD" and claimed != hashlib.sha256(body).hexdigest():
            return self._refuse("XAmzContentSHA256Mismatch")
        sha256 = headers.get(_CHECKSUMS["SHA256"])
        if sha256 is not None and base64.b64decode(sha256) != hashlib.sha256(body).digest():
            return self._refuse("BadDigest")
        if not self._put(key, body):
            return self._refuse("PreconditionFailed")
        sent = ((name, headers[header]) for name, header in _CHECKSUMS.items() if header in headers)
        if self.s3.keeps_checksums and (kept := next(sent, None)):
            self.s3.checksums[key] = kept
        return self._answer(200, b"")

    def _put(self, key: str, body: bytes) -> bool:
        with self.s3.lock:
            if key in self.s3.objects and self.s3.conditional:
                return False
            self.s3.objects[key] = body
            return True

    def _rest(self, key: str, headers: dict[str, str], fault: str | None) -> None:
        if self.command == "DELETE":
            self.s3.objects.pop(key, None)
            return self._answer(204, b"")
        if key not in self.s3.objects:
            return self._refuse("NoSuchKey")
        data = self.s3.objects[key]
        if fault == "flip":  # in transit to the reader
            data = bytes([data[0] ^ 1]) + data[1:]
        if "range" not in headers:
            return self._answer(200, data, self._kept(key, headers), half=fault == "half")
        first, _, last = headers["range"].removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            return self._refuse("InvalidRange")
        end = min(int(last) + 1 if last else len(data), len(data))
        span = f"bytes {first}-{end - 1}/{len(data)}"
        return self._answer(206, data[int(first) : end], {"Content-Range": span}, half=fault == "half")

    def _kept(self, key: str, headers: dict[str, str]) -> dict[str, str]:
        """Return the checksum of an object, as in responses."""
        if headers.get("x-amz-checksum-mode") != "ENABLED" or key not in self.s3.checksums:
            return {}
        name, value = self.s3.checksums[key]
        return {_CHECKSUMS[name]: value, "x-amz-checksum-type": self.s3.checksum_type}

    def _entry(self, path: str) -> str:
        key = path.removeprefix("store/")
        kept = ""
        if key in self.s3.checksums:
            name, _ = self.s3.checksums[key]
            kept = f"<ChecksumAlgorithm>{name}</ChecksumAlgorithm><ChecksumType>{self.s3.checksum_type}</ChecksumType>"
        data = self.s3.objects[key]
        said = f"<Key>{path}</Key><Size>{len(data)}</Size><ETag>{_version(data)}</ETag>{kept}"
        return f"<Contents>{said}<LastModified>2026-11-02T00:00:00.000Z</LastModified></Contents>"

    def _listing(self) -> bytes:
        """Return a page of ListObjectsV2."""
        asked = dict(parse_qsl(urlsplit(self.path).query))
        prefix, after = asked.get("prefix", ""), asked.get("continuation-token", asked.get("start-after", ""))
        most, cut = int(asked.get("max-keys", 1000)), asked.get("delimiter")
        paths = (path for key in list(self.s3.objects) if (path := f"store/{key}").startswith(prefix))
        heads = {_cut(path, len(prefix), cut): None for path in paths}
        listed = sorted(head for head in heads if head > after)[: most + 1]
        page = listed[:most]
        found = "".join(map(self._entry, (path for path in page if not (cut and path.endswith(cut)))))
        folders = (path for path in page if cut and path.endswith(cut))
        found += "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
        head = f"<Name>bucket</Name><KeyCount>{len(page)}</KeyCount>"
        head += f"<IsTruncated>{str(len(listed) > most).lower()}</IsTruncated>"
        if len(listed) > most:
            head += f"<NextContinuationToken>{page[-1]}</NextContinuationToken>"
        return f"<ListBucketResult>{head}{found}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, extra: dict[str, str] | None = None, *, half: bool = False) -> None:
        self.send_response(status)
        self.send_header("Last-Modified", self.date_time_string(time.time()))
        self.send_header("ETag", _version(body))
        self.send_header("Content-Length", str(len(body)))
        if self.s3.region:
            self.send_header("x-amz-bucket-region", self.s3.region)
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self.close_connection = True

    def _refuse(self, code: str) -> None:
        self._answer(_CODES[code], f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode())

    def _reset(self) -> None:
        self.close_connection = True
        # Closing with a linger of zero sends a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()
