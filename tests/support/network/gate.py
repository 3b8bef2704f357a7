"""A gate before an HTTP server, with TLS if it has a certificate. It can turn connections away like a dead server, or
answer 500. Without a server's own check, it demands a name and a password.
"""

import base64
import http.client
import http.server
import ssl
import threading
from pathlib import Path
from typing import Self

USER, PASSWORD = "researcher", "a-long-pass-phrase"
_HOP_BY_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length"))


class Gate:
    """Passes requests on to `port` of this machine. `turned_away` counts the requests while it `is_down` or `fails`.

    `certificate` is a file with a certificate and its key.
    """

    def __init__(self, port: int, *, asks: bool = True, certificate: Path | None = None) -> None:
        self.target = port
        self.asks = asks
        self.is_down = False
        self.fails = False
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
        if self.gate.is_down:
            self.gate.turned_away += 1
            self.close_connection = True
            return
        if self.gate.fails:
            self.gate.turned_away += 1
            self._answer(500, {}, b"Internal Server Error")
            return
        given = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.gate.asks and self.headers.get("Authorization") != f"Basic {given}":
            self._answer(401, {"WWW-Authenticate": 'Basic realm="mlflow"'}, b"You are not authenticated.")
            return
        self._pass_on(body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _pass_on(self, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.gate.target, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, body=body or None, headers=headers)
            response = connection.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
            self._answer(response.status, kept, response.read())
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
