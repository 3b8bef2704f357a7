"""A gate before an HTTP server, with TLS if it has a certificate. It breaks requests by a plan. Without a server's own
check, it demands a name and a password.
"""

import base64
import http.client
import http.server
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

USER, PASSWORD = "researcher", "a-long-pass-phrase"
_HOP_BY_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length"))


class Gate:
    """Passes requests on to `port` of this machine. `turned_away` counts the requests that it broke.

    While it `is_down`, it closes connections like a dead server, and while it `fails`, it answers 500. Otherwise `plan`
    returns the fault of a request by its number from `seen`: "down", "500", "lost" (the server gets the request, and
    the client no answer), "cut" (half of the answer), or "".

    `certificate` is a file with a certificate and its key.
    """

    def __init__(self, port: int, *, asks: bool = True, certificate: Path | None = None) -> None:
        self.target = port
        self.asks = asks
        self.is_down = False
        self.fails = False
        self.plan: Callable[[int], str] = lambda _: ""
        self.seen = 0
        self._lock = threading.Lock()
        self.scheme = "http" if certificate is None else "https"
        self.turned_away = 0
        handler = type("Handler", (_Handler,), {"gate": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # A thread of a connection makes the handshake, and not the thread that accepts all connections.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def take_fault(self) -> str:
        """Count a request, and return its fault."""
        with self._lock:
            fault = "down" if self.is_down else "500" if self.fails else self.plan(self.seen)
            self.seen += 1
            self.turned_away += bool(fault)
            return fault

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    gate: Gate
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.gate.take_fault()
        if fault == "down":
            self.close_connection = True
            return
        if fault == "500":
            self._answer(500, {}, b"Internal Server Error")
            return
        given = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.gate.asks and self.headers.get("Authorization") != f"Basic {given}":
            self._answer(401, {"WWW-Authenticate": 'Basic realm="mlflow"'}, b"You are not authenticated.")
            return
        self._pass_on(body, fault)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _pass_on(self, body: bytes, fault: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.gate.target, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, body=body or None, headers=headers)
            response = connection.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
            self._answer(response.status, kept, response.read(), fault)
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: str = "") -> None:
        self.close_connection = bool(fault)
        if fault == "lost":
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
