"""HTTP/1.1 framing: the ends of messages, and nothing more.

Bytes are passed on unchanged, including header order, case and Host, because they are signed.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

PIECE_BYTES = 1 << 18


class Malformed(Exception):
    """The received bytes are not HTTP/1.1, or ended within a message."""


class Head(msgspec.Struct, frozen=True):
    """A message's first line and headers: as received, and by lower-case name."""

    raw: bytes
    first: list[bytes]
    headers: dict[bytes, bytes]

    @property
    def method(self) -> str:
        return self.first[0].decode("ascii")

    @property
    def status(self) -> int:
        return int(self.first[1])

    @property
    def closes(self) -> bool:
        """True if the connection ends after this message."""
        said = self.headers.get(b"connection", b"").lower()
        return said == b"close" or (self.first[0] == b"HTTP/1.0" and said != b"keep-alive")


class Framing(msgspec.Struct, frozen=True):
    """The length of a body: `length` bytes, or by chunks, or (both unset) until the connection ends."""

    length: int | None = None
    chunked: bool = False

    @property
    def empty(self) -> bool:
        return self.length == 0


class Piece(msgspec.Struct, frozen=True):
    """Some bytes of a body. `content` is False for chunk delimiters."""

    data: bytes
    content: bool = True


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Return the next message's head, or None if the connection ended before it. Raises Malformed."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Malformed("the connection ended in a head") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise Malformed("a head without end") from error
    lines = raw[:-4].split(b"\r\n")
    pairs = (line.partition(b":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    first = lines[0].split(b" ", 2)
    if len(first) < 2:
        raise Malformed(f"not HTTP: {lines[0]!r}")
    return Head(raw=raw, first=first, headers=headers)


def request_framing(head: Head) -> Framing:
    """Return the framing of a request's body (RFC 9112, section 6.3)."""
    if head.headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
        return Framing(chunked=True)
    return Framing(length=int(head.headers.get(b"content-length", b"0")))


def response_framing(head: Head, method: str) -> Framing:
    """Return the framing of the response's body for a `method` request."""
    if method == "HEAD" or head.status < 200 or head.status in (204, 304):
        return Framing(length=0)
    if head.headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
        return Framing(chunked=True)
    length = head.headers.get(b"content-length")
    return Framing(length=None if length is None else int(length))


async def body(reader: asyncio.StreamReader, framing: Framing) -> AsyncIterator[Piece]:
    """Yield a body as it arrives. Raises Malformed if the connection ends before the body."""
    if framing.chunked:
        async for piece in _chunks(reader):
            yield piece
    elif framing.length is None:
        while data := await reader.read(PIECE_BYTES):
            yield Piece(data)
    else:
        async for piece in _exactly(reader, framing.length):
            yield piece


async def _exactly(reader: asyncio.StreamReader, length: int) -> AsyncIterator[Piece]:
    while length:
        data = await reader.read(min(length, PIECE_BYTES))
        if not data:
            raise Malformed(f"the connection ended {length} bytes before the body")
        length -= len(data)
        yield Piece(data)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[Piece]:
    try:
        while True:
            line = await reader.readuntil(b"\r\n")
            yield Piece(line, content=False)
            size = int(line.split(b";")[0], 16)
            if size == 0:
                break
            async for piece in _exactly(reader, size):
                yield piece
            yield Piece(await reader.readexactly(2), content=False)
        # Trailers, and the empty line after them.
        while line != b"\r\n":
            line = await reader.readuntil(b"\r\n")
            yield Piece(line, content=False)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise Malformed("the connection ended in a chunked body") from error
