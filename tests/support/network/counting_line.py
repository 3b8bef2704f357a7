"""A line between clients and a server that counts all bytes, in both directions, by the address of the client."""

import socket
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType


class CountingLine:
    """Relays TCP connections from an address of this machine to `target` ("127.0.0.1:8000"). Threads carry bytes."""

    def __init__(self, target: str, host: str = "127.0.0.1") -> None:
        name, _, port = target.rpartition(":")
        self._target, self._lock = (name, int(port)), threading.Lock()
        self._counts: Counter[str] = Counter()
        self._socket = socket.create_server((host, 0), backlog=128)
        self.endpoint = f"http://{host}:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "CountingLine":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def size_bytes(self, *clients: str) -> int:
        """Return the bytes to and from these clients so far."""
        with self._lock:
            return sum(self._counts[client] for client in clients)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, (client, *_) = self._socket.accept()
                far = socket.create_connection(self._target)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(client, *ends), daemon=True).start()

    def _carry(self, client: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                with self._lock:
                    self._counts[client] += len(data)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
