"""moto's S3 server with atomic conditional creates. moto alone checks and writes in two steps, so several writers can
win.

python tests/support/s3/moto_server.py PORT [HOST]
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

_CONDITION = "HTTP_IF_NONE_MATCH"


class OneAtATime:
    """A WSGI application that handles conditional requests one after another."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if _CONDITION not in environ:
            return self._app(environ, start_response)
        with self._lock:
            return self._app(environ, start_response)


if __name__ == "__main__":
    dispatcher = DomainDispatcherApplication(create_backend_app)
    host = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    run_simple(host, int(sys.argv[1]), OneAtATime(dispatcher), threaded=True, request_handler=MotoRequestHandler)
