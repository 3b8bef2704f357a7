"""The link between the nodes of an attempt: one connection from each follower to its leader.

Each message is a record (records/nodes.py). A side that is silent for `SILENCE_S` counts as lost. Both sides prove that
they know the record of the job or of the run, which the store has: the link starts processes, and must not serve
strangers.
"""

import hmac
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import blake3

from m5ws.errors import M5Error
from m5ws.records import codec
from m5ws.records.job import Job
from m5ws.records.launch import Place
from m5ws.records.nodes import LARGEST_BYTES, Alive, Ended, Hello, Message
from m5ws.records.run import Run

SILENCE_S = 15.0
_ALIVE_S = 2.0
_RETRY_S = 0.5
_LENGTH = struct.Struct("<I")
_BYTES = 32
_SIDES = (b"follower", b"leader")


def key_of(record: Job | Run) -> bytes:
    """Return the key of the link between the nodes of a job: a digest of its record, which only the store has.

    Agents that no job of m5ws started use the record of their run.
    """
    return blake3.blake3(codec.encode(record), derive_key_context="m5ws 2026-11 link between nodes").digest()


class StartAgain(M5Error):
    """A scheduler shall start all agents again: a node is lost, or the time limit of a job ended the attempt."""

    exit_code = 75
    hint = "The scheduler may start the nodes again: exit status 75 asks for it."


class Connection:
    """One side of a connection. A thread reads its messages, and sends signs of life."""

    def __init__(self, opened: socket.socket, key: bytes, *, is_leader: bool) -> None:
        opened.settimeout(SILENCE_S)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._sending = opened, threading.Lock()
        self._prove(key, _SIDES[is_leader], _SIDES[not is_leader])
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_lost = False
        for work in (self._read, self._live):
            threading.Thread(target=work, name="m5ws-link", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message. A lost connection is found by the reader."""
        data = codec.encode(message)
        with self._sending, suppress(OSError):
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Message | None:
        """Return the next message, None if there is none yet. Raises StartAgain after the last message."""
        with suppress(queue.Empty):
            message = self._messages.get_nowait()
            if message is None:
                self._messages.put(None)
                raise StartAgain("the connection has ended, or was silent")
            return message
        return None

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _prove(self, key: bytes, own: bytes, other: bytes) -> None:
        """Show that this side knows the key, and check that the other side does. Raises OSError."""
        nonce = os.urandom(_BYTES)
        self._socket.sendall(nonce)
        asked = self._exactly(_BYTES)
        self._socket.sendall(hmac.digest(key, own + asked, "sha256"))
        if not hmac.compare_digest(self._exactly(_BYTES), hmac.digest(key, other + nonce, "sha256")):
            raise OSError("the other side does not know the record of the run")

    def _read(self) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
                if length > LARGEST_BYTES:
                    break
                message: Message = codec.decode(self._exactly(length), Message, "message")  # type: ignore[arg-type]
                if not isinstance(message, Alive):
                    self._messages.put(message)
        except (OSError, M5Error):
            pass
        finally:
            self._is_lost = True
            self._messages.put(None)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionResetError("the other side has closed the connection")
            data += part
        return data

    def _live(self) -> None:
        while not self._is_lost:
            self.send(Alive())
            time.sleep(_ALIVE_S)


class Follower:
    """A follower, as its leader sees it. `ended` is None while its processes run."""

    def __init__(self, hello: Hello, connection: Connection) -> None:
        self.node, self.host, self.connection = hello.node, hello.host, connection
        self.ended: Ended | None = None
        self.is_storing = False

    def __str__(self) -> str:
        return f"node {self.node} ({self.host})"


class Listener:
    """The leader's side: it accepts the followers of its job, each node once."""

    def __init__(self, place: Place, key: bytes) -> None:
        self._place, self._key = place, key
        self._lock = threading.Lock()
        self._followers: dict[int, Follower] = {}
        self._is_closed = False
        try:
            self._socket = socket.create_server(("", place.port + 1), backlog=place.nodes)
        except OSError as error:
            # A scheduler that starts the agents again gives them other ports.
            raise StartAgain(f"port {place.port + 1} cannot be used for the link of the nodes: {error}") from error
        threading.Thread(target=self._accept, name="m5ws-link", daemon=True).start()

    def wait(self, join_s: float, poll: Callable[[], None], notify: Callable[[str], None]) -> list[Follower]:
        """Return all followers, in order. Raises StartAgain if one has not come after `join_s` seconds."""
        end_s, expected = time.monotonic() + join_s, range(1, self._place.nodes)
        while missing := [str(node) for node in expected if node not in self._followers]:
            if time.monotonic() > end_s:
                raise StartAgain(
                    f"node {', '.join(missing)} did not come in {join_s:.0f} s",
                    hint=f"Each node must reach port {self._place.port + 1} of {self._place.master}.",
                )
            notify(f"waiting for node {', '.join(missing)} of {self._place.nodes}")
            poll()
            time.sleep(_RETRY_S)
        return [self._followers[node] for node in expected]

    @property
    def followers(self) -> list[Follower]:
        """The followers that have come, in order."""
        with self._lock:
            return [self._followers[node] for node in sorted(self._followers)]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for follower in self.followers:
            follower.connection.close()
        with suppress(OSError):
            # `close` alone leaves the port in use while the other thread accepts.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                opened, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._greet, args=(opened,), name="m5ws-link", daemon=True).start()

    def _greet(self, opened: socket.socket) -> None:
        try:
            connection = Connection(opened, self._key, is_leader=True)
        except OSError:
            opened.close()
            return
        hello = _await(connection, SILENCE_S)
        with self._lock:
            is_expected = isinstance(hello, Hello) and hello.job == self._place.job and not self._is_closed
            if isinstance(hello, Hello) and is_expected and hello.node not in self._followers:
                self._followers[hello.node] = Follower(hello, connection)
                return
        connection.close()


def join(place: Place, key: bytes, join_s: float) -> Connection:
    """Return a follower's connection to its leader. Raises StartAgain if the leader does not answer in `join_s`."""
    end_s = time.monotonic() + join_s
    while True:
        try:
            opened = socket.create_connection((place.master, place.port + 1), SILENCE_S)
            connection = Connection(opened, key, is_leader=False)
        except OSError as error:
            if time.monotonic() > end_s:
                raise StartAgain(
                    f"the leader does not answer on port {place.port + 1} of {place.master}: {error}"
                ) from error
            time.sleep(_RETRY_S)
            continue
        connection.send(Hello(node=place.node, host=socket.gethostname(), job=place.job))
        return connection


def _await(connection: Connection, seconds: float) -> Message | None:
    """Return the next message, None if there is none in time or if the connection is lost."""
    end_s = time.monotonic() + seconds
    with suppress(StartAgain):
        while time.monotonic() < end_s:
            if (message := connection.receive()) is not None:
                return message
            time.sleep(0.01)
    return None
