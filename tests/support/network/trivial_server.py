"""A minimal HTTP server behind a proxy, which records the bytes it received."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


def content(size_bytes: int) -> bytes:
    """Return the response to GET /<size_bytes>: bytes without two equal neighbours."""
    return bytes(number * 7 % 251 for number in range(size_bytes))


class TrivialServer:
    """GET /n returns n bytes, GET /chunked/n the same in chunks. PUT takes a body. Anything else is an error."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self.hosts: set[str] = set()
        self._server = _Quiet(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.address = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __enter__(self) -> "TrivialServer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of broken connections, which the tests cause."""


def _handler(owner: TrivialServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._note(b"")
            data = content(int(self.path.rpartition("/")[2]))
            self.send_response(200)
            if self.path.startswith("/chunked/"):
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for start in range(0, len(data), 1000):
                    piece = data[start : start + 1000]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815  # http.server's name

        def do_PUT(self) -> None:
            wanted = int(self.headers["Content-Length"])
            data = self.rfile.read(wanted)
            if len(data) < wanted:
                self.close_connection = True
                return
            self._note(data)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _note(self, data: bytes) -> None:
            owner.requests.append((self.command, self.path, data))
            owner.hosts.add(self.headers["Host"])

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
            pass

    return Handler
