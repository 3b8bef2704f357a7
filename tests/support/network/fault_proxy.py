"""An HTTP proxy that breaks requests on purpose: a process between a client and a server, over plain TCP.

Each client connection has its own connection to the server. Undamaged requests pass byte for byte, including the Host
header, so a signed request stays signed. A connection is closed after a fault that left both sides in different states.

`python tests/support/network/fault_proxy.py HOST:PORT` prints its two ports as JSON. The second port takes settings
(GET / and PUT /, described in `proxies.py`). It ends when its stdin closes.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from tests.support.network.fault_plan import Fault, Plan, Settings, count
from tests.support.network.http_wire import (
    PIECE_BYTES,
    Framing,
    Head,
    Malformed,
    Piece,
    body,
    read_head,
    request_framing,
    response_framing,
)

_ANSWERS = {
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied"),
    "full": ("403 Forbidden", "QuotaExceeded", "The quota of the bucket is exceeded."),
    "http_500": ("500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again."),
    "slow_down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "request_timeout": (
        "400 Bad Request",
        "RequestTimeout",
        "Your socket connection to the server was not read from or written to within the timeout period.",
    ),
}
_ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    "<Error><Code>{code}</Code><Message>{message}</Message><RequestId>INJECTED</RequestId></Error>"
)
_ESTABLISHED = 1
# This fraction of cut responses is cut before the body.
_IN_HEAD = 0.1


class Reset(Exception):
    """The client's connection must be reset."""


class Ended(Exception):
    """The client's connection must be closed after the bytes written to it."""


class Link:
    """One side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def left(self, timeout_s: float) -> None:
        """Return when the other side has closed, or after `timeout_s`. Reads nothing, so that uploads stall."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline and self._established():  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.05)

    def _established(self) -> bool:
        try:
            return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
        except OSError:
            return False

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self.writer.get_extra_info("socket")
        return found


class Connection:
    """A client's connection, and its connection to the server."""

    def __init__(self, client: Link, target: tuple[str, int], plan: Plan) -> None:
        self._client = client
        self._target = target
        self._plan = plan
        self._server: Link | None = None

    async def serve(self) -> None:
        """Pass on requests until one side, or a fault, ends the connection."""
        try:
            while (head := await read_head(self._client.reader)) is not None:
                await self._exchange(head, self._plan.draw(head.method))
        except Reset:
            self._client.reset()
        except (Ended, Malformed, OSError):
            pass
        finally:
            if self._server is not None:
                self._server.writer.transport.abort()
            await self._client.close()

    async def _exchange(self, head: Head, fault: Fault | None) -> None:
        kind = fault.kind if fault is not None else ""
        framing = request_framing(head)
        if fault is not None and kind in ("corrupt_request", "stall_upload") and framing.empty:
            count(self._plan.counters.pointless, kind)
            fault, kind = None, ""
        if fault is not None and not kind.startswith("corrupt_res"):
            count(self._plan.counters.injected, kind)
        if kind == "reset_before":
            raise Reset
        if kind in _ANSWERS:
            return await self._answer(head, framing, kind)
        server = await self._connected()
        if fault is not None and kind in ("truncated_request", "stall_upload"):
            return await self._cut_upload(head, framing, fault)
        pieces = body(self._client.reader, framing)
        if fault is not None and kind == "corrupt_request":
            pieces = flipped(pieces, framing, fault.at)
        await server.send(head.raw)
        # Both directions at once: a server may respond before it has read everything, and Expect: 100-continue requires
        # it.
        upload = None if framing.empty else asyncio.ensure_future(self._upload(server, pieces))
        try:
            closes = await self._respond(server, head.method, fault)
        finally:
            whole = upload is None or await _finished(upload)
        if closes or head.closes or not whole:
            raise Ended
        return None

    async def _connected(self) -> Link:
        server = self._server
        if server is None or server.reader.at_eof() or server.writer.transport.is_closing():
            try:
                reader, writer = await asyncio.open_connection(*self._target, limit=PIECE_BYTES)
            except OSError as error:
                self._plan.counters.upstream_errors += 1
                raise Reset from error
            self._server = server = Link(reader, writer)
        return server

    async def _answer(self, head: Head, framing: Framing, kind: str) -> None:
        """Respond in place of the server, which gets nothing."""
        waits = head.headers.get(b"expect", b"").lower() == b"100-continue"
        if not waits:
            async for _ in body(self._client.reader, framing):
                pass
        status, code, message = _ANSWERS[kind]
        text = _ERROR.format(code=code, message=message)
        closes = waits or kind == "request_timeout"
        headers = f"Content-Type: application/xml\r\nContent-Length: {len(text)}\r\nx-amz-request-id: INJECTED\r\n"
        headers += "Connection: close\r\n" if closes else ""
        shown = "" if head.method == "HEAD" else text
        await self._client.send(f"HTTP/1.1 {status}\r\n{headers}\r\n{shown}".encode())
        if closes:
            raise Ended

    async def _cut_upload(self, head: Head, framing: Framing, fault: Fault) -> None:
        """Pass a part of the request to the server, and then nothing more."""
        server = await self._connected()
        if framing.empty:
            await server.send(head.raw[: int(len(head.raw) * fault.at)])
        else:
            await server.send(head.raw)
            async for piece in cut(await self._continued(head, framing), framing, fault.at):
                await server.send(piece.data)
        if fault.kind == "stall_upload":
            await self._client.left(self._plan.settings.stall_s)
        raise Reset

    async def _continued(self, head: Head, framing: Framing) -> AsyncIterator[Piece]:
        if head.headers.get(b"expect", b"").lower() == b"100-continue":
            await self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return body(self._client.reader, framing)

    async def _upload(self, server: Link, pieces: AsyncIterator[Piece]) -> None:
        try:
            async for piece in pieces:
                self._plan.counters.bytes_up += len(piece.data)
                await server.send(piece.data)
        except Malformed:
            # The client left in the middle. The server must not wait for the rest, and the proxy not for its response.
            server.writer.transport.abort()
            raise

    async def _respond(self, server: Link, method: str, fault: Fault | None) -> bool:
        """Pass on a response. Return True if the connection ends after it."""
        head = await self._final(server)
        framing = response_framing(head, method)
        pieces = body(server.reader, framing)
        kind = fault.kind if fault is not None else ""
        if kind == "corrupt_response":
            count(self._plan.counters.pointless if framing.empty else self._plan.counters.injected, kind)
        if fault is not None and kind == "corrupt_response" and not framing.empty:
            pieces = flipped(pieces, framing, fault.at)
        elif kind == "reset_after":
            async for _ in pieces:
                pass
            raise Reset
        elif fault is not None and kind in ("truncated_response", "stall"):
            await self._cut_response(head, framing, pieces, fault)
        if kind == "drip":
            await self._drip(head, pieces)
        else:
            await self._pass(head, pieces)
        return head.closes or (framing.length is None and not framing.chunked)

    async def _final(self, server: Link) -> Head:
        """Return the head of the final response. Earlier heads (100 Continue) are passed on."""
        while (head := await read_head(server.reader)) is not None:
            if head.status >= 200:
                return head
            await self._client.send(head.raw)
        raise Reset

    async def _pass(self, head: Head, pieces: AsyncIterator[Piece]) -> None:
        waiting = head.raw
        async for piece in pieces:
            self._plan.counters.bytes_down += len(piece.data)
            await self._client.send(waiting + piece.data)
            waiting = b""
        if waiting:
            await self._client.send(waiting)

    async def _cut_response(self, head: Head, framing: Framing, pieces: AsyncIterator[Piece], fault: Fault) -> None:
        if framing.empty or fault.at < _IN_HEAD:
            await self._client.send(
                head.raw[: int(len(head.raw) * (fault.at if framing.empty else fault.at / _IN_HEAD))]
            )
        else:
            await self._pass(head, cut(pieces, framing, (fault.at - _IN_HEAD) / (1 - _IN_HEAD)))
        if fault.kind == "stall":
            await self._client.left(self._plan.settings.stall_s)
            raise Reset
        raise Ended

    async def _drip(self, head: Head, pieces: AsyncIterator[Piece]) -> None:
        await self._client.send(head.raw)
        step = max(1, self._plan.settings.drip_bytes_s // 20)
        async for piece in pieces:
            for start in range(0, len(piece.data), step):
                await self._client.send(piece.data[start : start + step])
                await asyncio.sleep(1 / 20)


async def _finished(upload: "asyncio.Future[None]") -> bool:
    """Return True if an upload completed. Otherwise cancel it."""
    if not upload.done():
        upload.cancel()
    with suppress(asyncio.CancelledError, Malformed, OSError):
        await upload
        return True
    return False


async def cut(pieces: AsyncIterator[Piece], framing: Framing, at: float) -> AsyncIterator[Piece]:
    """Yield the first `at` of a body's content. If its length is unknown, of its first piece."""
    left = None if framing.length is None else int(framing.length * at)
    async for piece in pieces:
        if not piece.content:
            yield piece
            continue
        left = int(len(piece.data) * at) if left is None else left
        if left:
            yield Piece(piece.data[:left])
        left -= len(piece.data[:left])
        if not left:
            return


async def flipped(pieces: AsyncIterator[Piece], framing: Framing, at: float) -> AsyncIterator[Piece]:
    """Yield a body with one flipped bit, at `at` of its content, or of its first piece as above."""
    position = None if framing.length is None else int(framing.length * at)
    async for piece in pieces:
        if not piece.content:
            yield piece
            continue
        position = int(len(piece.data) * at) if position is None else position
        if 0 <= position < len(piece.data):
            changed = bytearray(piece.data)
            changed[position] ^= 1 << int(at * 8191) % 8
            yield Piece(bytes(changed))
        else:
            yield piece
        position -= len(piece.data)


async def _administer(link: Link, plan: Plan) -> None:
    """Answer GET / with settings and counters. PUT / changes the settings given by key."""
    try:
        while (head := await read_head(link.reader)) is not None:
            sent = b"".join([piece.data async for piece in body(link.reader, request_framing(head))])
            status = "200 OK"
            if head.method == "PUT":
                try:
                    said = msgspec.to_builtins(plan.settings) | msgspec.json.decode(sent, type=dict[str, object])
                    plan.change(msgspec.convert(said, Settings))
                except (msgspec.DecodeError, ValueError) as error:
                    status = f"400 {str(error).splitlines()[0]}"
            shown = msgspec.json.encode({"settings": plan.settings, "counters": plan.counters})
            await link.send(f"HTTP/1.1 {status}\r\nContent-Length: {len(shown)}\r\n\r\n".encode() + shown)
    except (Malformed, OSError):
        pass
    finally:
        await link.close()


async def run(target: tuple[str, int]) -> None:
    """Serve until stdin closes."""
    plan = Plan(Settings())

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plan.counters.connections += 1
        await Connection(Link(reader, writer), target, plan).serve()

    async def administer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _administer(Link(reader, writer), plan)

    proxy = await asyncio.start_server(pass_on, "127.0.0.1", 0, limit=PIECE_BYTES, backlog=1024)
    admin = await asyncio.start_server(administer, "127.0.0.1", 0)
    ports = {name: one.sockets[0].getsockname()[1] for name, one in (("port", proxy), ("admin_port", admin))}
    print(msgspec.json.encode(ports).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    asyncio.run(run((host, int(port))))
