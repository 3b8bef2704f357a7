"""Servers that fail: an S3 server and a model hub that refuse requests, and a TLS server with its own certificate.

`python stubs.py FOLDER` prints the ports of both servers, and serves until its input ends.
"""

import hashlib
import http.server
import ssl
import subprocess
import sys
import threading
from pathlib import Path

_HUB = ((401, "RepoNotFound"), (404, "EntryNotFound"), (403, "GatedRepo"), (404, "RepoNotFound"), (410, ""))
_MESSAGES = {
    "AccessDenied": "Access Denied",
    "ExpiredToken": "The provided token has expired.",
    "SlowDown": "Please reduce your request rate.",
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchBucket": "The specified bucket does not exist",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each request by an error: a bucket is named for the error, as SlowDown-503."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.close_connection = True
        name, _, status = self.path.split("/")[1].split("?")[0].rpartition("-")
        if not status.isdigit():
            code, error = _HUB[hashlib.sha256(self.path.encode()).digest()[0] % len(_HUB)]
            self._send(code, b'{"error": "refused"}', {"X-Error-Code": error} if error else {})
        elif name == "short":
            self._send(200, b"x" * 10, {"Content-Length": "5000"})
        elif name != "close":
            text = f"<Error><Code>{name}</Code><Message>{_MESSAGES.get(name, 'Try again.')}</Message></Error>"
            self._send(int(status), text.encode(), {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = _answer  # noqa: N815  # names that http.server calls


def main(folder: Path) -> None:
    """Serve until the input ends."""
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    secure = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    key, certificate = folder / "key.pem", folder / "cert.pem"
    options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command = ["openssl", "req", "-x509", *options, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    for server in plain, secure:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(plain.server_port, secure.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
