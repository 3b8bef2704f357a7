"""A server on this machine that takes messages, as a chat service does, and that can be away."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook(ThreadingHTTPServer):
    """`received` are the bodies of accepted requests, in order. `status` is the answer to all requests, after
    `delay_s`; 0 closes the connection without an answer.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Any] = []
        self.asked = 0
        self.status = 200
        self.delay_s = 0.0

    @property
    def url(self) -> str:
        """The address for apprise."""
        return f"json://127.0.0.1:{self.server_port}/hook/token"


class _Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        if self.server.status in (0, 200):
            self.server.received.append(json.loads(body))
        self._answer()

    def do_GET(self) -> None:
        self.server.asked += 1
        self._answer()

    def _answer(self) -> None:
        time.sleep(self.server.delay_s)
        if not self.server.status:
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@contextmanager
def running() -> Iterator[Webhook]:
    """Run the server while the block does."""
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
