"""A long link on loopback: a process that relays TCP, and delays each byte by a fixed time.

Bytes are delayed but not serialised, as on a long link without loss. With a rate, all connections share that rate in
each direction. A new connection costs one more round trip, as TCP's handshake does. Slow start is not simulated.

`python tests/support/network/delay_line.py HOST:PORT RTT_MS [MB_PER_S]` prints its port as JSON and ends when its
stdin closes.
"""

import asyncio
import math
import sys
from collections import deque

_BUFFER_BYTES = 1 << 20
# Bytes in transit in one direction: at 25 ms one way, more than 2.5 GB/s. Beyond that the sender waits.
_ON_ITS_WAY_BYTES = 64 << 20


class Lane:
    """One direction of the link, which all connections share: a delay, and a rate in bytes per second."""

    def __init__(self, delay_s: float, rate: float) -> None:
        self.delay_s, self._rate, self._free_s = delay_s, rate, 0.0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """Return the time at which bytes that are sent now arrive."""
        self._free_s = max(now_s, self._free_s) + size_bytes / self._rate
        return self._free_s + self.delay_s


class End(asyncio.BufferedProtocol):
    """One end of a relayed connection. Received bytes are written to `peer` when they arrive over their lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._buffer = bytearray(_BUFFER_BYTES)
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._queued = 0
        self._timer: asyncio.TimerHandle | None = None
        self._blocked = False
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.peer: End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._later(bytes(memoryview(self._buffer)[:nbytes]))
        if self._queued > _ON_ITS_WAY_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._later(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if exc is not None and self.peer is not None and self.peer.transport is not None:
            self.peer.transport.abort()
        else:
            self._later(None)

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.hold(blocked=True)

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.hold(blocked=False)

    def hold(self, *, blocked: bool) -> None:
        """Set whether the other side accepts bytes."""
        self._blocked = blocked
        if not blocked:
            self._deliver()

    def _later(self, data: bytes | None) -> None:
        self._queue.append((self._lane.arrival_s(self._loop.time(), len(data or b"")), data))
        self._queued += len(data or b"")
        if self._timer is None:
            self._timer = self._loop.call_at(self._queue[0][0], self._deliver)

    def _deliver(self) -> None:
        """Write the bytes that are due, and schedule the next call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        target = self.peer.transport if self.peer is not None else None
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now and not self._blocked:
            _, data = self._queue.popleft()
            self._queued -= len(data or b"")
            if target is None or target.is_closing():
                continue
            if data is not None:
                target.write(data)
            elif self.transport is None:
                target.close()
            elif target.can_write_eof():
                target.write_eof()
        if self._queued < _ON_ITS_WAY_BYTES // 2 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        if self._queue and not self._blocked:
            self._timer = self._loop.call_at(self._queue[0][0], self._deliver)


class Near(End):
    """The client's end. It is connected to the server after the time of a handshake over the link."""

    def __init__(self, there: Lane, back: Lane, target: tuple[str, int]) -> None:
        super().__init__(there)
        self._back, self._target = back, target
        self._joining: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._joining = self._loop.create_task(self._join())

    async def _join(self) -> None:
        await asyncio.sleep(2 * self._lane.delay_s)
        try:
            _, far = await self._loop.create_connection(lambda: End(self._back), *self._target)
        except OSError:
            if self.transport is not None:
                self.transport.abort()
            return
        self.peer, far.peer = far, self
        if self.transport is None:
            if far.transport is not None:
                far.transport.close()
        else:
            self.transport.resume_reading()


async def run(target: tuple[str, int], rtt_s: float, rate: float) -> None:
    """Serve until stdin closes."""
    loop = asyncio.get_running_loop()
    there, back = Lane(rtt_s / 2, rate), Lane(rtt_s / 2, rate)
    server = await loop.create_server(lambda: Near(there, back, target), "127.0.0.1", 0, backlog=1024)
    print(f'{{"port": {server.sockets[0].getsockname()[1]}}}', flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    mb_per_s = float(sys.argv[3]) if len(sys.argv) > 3 else math.inf
    asyncio.run(run((host, int(port)), float(sys.argv[2]) / 1000, mb_per_s * 1e6))
