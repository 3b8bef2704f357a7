"""A private index of wheels (PEP 503) on this machine, and git repositories beside it, which need no password."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.files import wheels

USER, SECRET = "ada", "hunter2-of-the-index"
_GRANTED = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/git/") or self.headers.get("Authorization") == _GRANTED:
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic realm=index")
        self.send_header("Content-Length", "0")
        return self.end_headers()


@contextmanager
def serve(root: Path) -> Iterator[str]:
    """Serve the wheels in `root`/files and the repositories in `root`/git; yield the host and the port."""
    for wheel in sorted((root / "files").iterdir()):
        page = root / "simple" / wheel.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as lines:
            lines.write(f'<a href="/files/{wheel.name}#sha256={wheels.sha256(wheel)}">{wheel.name}</a>\n')
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
