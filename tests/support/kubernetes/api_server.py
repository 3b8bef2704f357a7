"""An API server of Kubernetes with JobSets, which answers as its API reference describes: no cluster was recorded.

It refuses unknown fields and broken rules (jobset_schema.py) as server-side apply does, and answers 403 to requests
that its role lacks, and listed failures to the next requests. `controller.py` runs its JobSets.
"""

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.kubernetes import jobset_schema

NAMESPACE = "training"
_TOKEN = "token-of-a-user"
_REASONS = {
    401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 422: "Invalid", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


class Server:
    """A running server. `failures` are statuses of the next requests, 0 for a connection that ends without an answer.

    `foreign` is a status, a content type and a body of something before the server, which answers all requests.
    `allowed` are the verbs and resources that the role of the client has; None: all. `pods` are lists by JobSet.
    """

    def __init__(self, folder: Path) -> None:
        self.lock = threading.RLock()
        self.jobsets: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, list[dict[str, Any]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.failures: list[int] = []
        self.allowed: set[tuple[str, str]] | None = None
        self.foreign: tuple[int, str | None, bytes] | None = None
        self.kubeconfig = folder / "kubeconfig"
        handler = type("Handler", (_Handler,), {"state": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server = {"server": f"http://127.0.0.1:{self.http.server_port}"}
        context = {"cluster": "lab", "user": "me", "namespace": NAMESPACE}
        configuration = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": server}], "users": [{"name": "me", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "lab", "context": context}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(configuration))

    def apply(self, name: str, given: dict[str, Any], *, is_dry: bool) -> tuple[int, dict[str, Any]]:
        """Return the answer to a server-side apply by one manager of fields."""
        old = self.jobsets.get(name)
        found = jobset_schema.problems(given, old and {**old, "metadata": given["metadata"], "status": None})
        if found:
            return _status(500 if "Additional properties" in found[0] else 422, f'JobSet "{name}": {"; ".join(found)}')
        made = old or {"metadata": {"uid": str(uuid.uuid4()), "namespace": NAMESPACE, "resourceVersion": "1"}}
        made = {**made, **given, "metadata": made["metadata"] | given["metadata"]}
        if not is_dry:
            self.jobsets[name] = made
        return (200 if old else 201), made

    def delete(self, name: str) -> tuple[int, dict[str, Any]]:
        """Return the answer to a request to delete a JobSet. Its pods go with it."""
        if self.jobsets.pop(name, None) is None:
            return _missing(name)
        self.pods.pop(name, None)
        return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Yield a running server."""
    server = Server(folder)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return code, head | {"message": message, "reason": _REASONS[code], "code": code}


def _missing(name: str) -> tuple[int, dict[str, Any]]:
    return _status(404, f'jobsets.jobset.x-k8s.io "{name}" not found')


class _Handler(BaseHTTPRequestHandler):
    state: Server
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.state.lock:
            code, answer = self._find(url.path.strip("/").split("/"), parse_qs(url.query), body)
        if code == 0:
            self.close_connection = True
            return
        kind: str | None = "application/json"
        data = json.dumps(answer).encode()
        if self.state.foreign is not None:
            code, kind, data = self.state.foreign
        self.send_response(code)
        if kind is not None:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PATCH = do_DELETE = _answer  # noqa: N815  names of http.server

    def _find(self, path: list[str], query: dict[str, list[str]], body: bytes) -> tuple[int, dict[str, Any]]:
        server = self.state
        resource, name = path[path.index("namespaces") + 2], path[-1]
        verb = {"PATCH": "patch", "DELETE": "delete"}.get(self.command, "list" if name == resource else "get")
        server.requests.append((verb, resource))
        if server.failures:
            code = server.failures.pop(0)
            return _status(code, f"the server answers {code}") if code else (0, {})
        if self.headers.get("Authorization") != f"Bearer {_TOKEN}":
            return _status(401, "Unauthorized")
        verbs = {verb, "create"} if verb == "patch" else {verb}
        if server.allowed is not None and not all((each, resource) in server.allowed for each in verbs):
            return _status(403, f'{resource} is forbidden: User "me" cannot {verb} resource "{resource}"')
        if path[path.index("namespaces") + 1] != NAMESPACE:
            return _status(404, "the namespace was not found")
        if verb == "list":
            (selector,) = query["labelSelector"]
            found = server.pods.get(selector.partition("=")[2], [])
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": found}
        if verb == "patch":
            assert self.headers["Content-Type"].startswith("application/apply-patch") and query["fieldManager"]
            return server.apply(name, json.loads(body), is_dry=query.get("dryRun") == ["All"])
        if verb == "delete":
            return server.delete(name)
        return (200, server.jobsets[name]) if name in server.jobsets else _missing(name)

    def log_message(self, *_: Any) -> None:
        """Print no lines."""
