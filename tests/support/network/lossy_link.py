"""A long link that loses packets: two network namespaces, and a process that carries packets between them.

The TCP of both ends is the kernel's, with its retransmissions and its congestion control. This process delays each
packet by half of the round trip, and drops it with a fixed probability. It needs root, `ip` and `/dev/net/tun`.

`python tests/support/network/lossy_link.py SERVER_NAMESPACE CLIENT_NAMESPACE RTT_MS LOSS` prints a line of JSON when
the link is up, and a line with its counters when its stdin closes.
"""

import fcntl
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from types import TracebackType

SERVER, CLIENT = "10.231.77.1", "10.231.77.2"
# Of processes that stand for other machines: the load of this machine must not delay packets.
PRIORITY = "-10"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET_BYTES = 2048
# Packets that wait at one end, as in a router: more are dropped.
_QUEUE = 4096


def missing() -> str | None:
    """Return the reason why this machine cannot have a link; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the program ip is missing"
    return None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun is missing"


class LossyLink:
    """A link between two namespaces. `inside(SERVER, …)` and `inside(CLIENT, …)` are commands at its ends.

    `congestion` is the kernel's congestion control at both ends. A lost packet halves the rate of "reno".
    """

    def __init__(self, rtt_ms: float, loss: float, congestion: str = "reno") -> None:
        self._names = {end: f"m5-{os.getpid()}-{name}" for end, name in ((SERVER, "s"), (CLIENT, "c"))}
        self._rtt_ms, self._loss, self._congestion = rtt_ms, loss, congestion
        self.counters: dict[str, int] = {}

    def inside(self, end: str, *command: str) -> list[str]:
        """Return a command that runs at an end of the link."""
        return ["ip", "netns", "exec", self._names[end], *command]

    def __enter__(self) -> "LossyLink":
        for end, name in self._names.items():
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(self.inside(end, "ip", "link", "set", "lo", "up"), check=True)
            setting = f"net.ipv4.tcp_congestion_control={self._congestion}"
            subprocess.run(self.inside(end, "sysctl", "-qw", setting), check=True)
        words = [*self._names.values(), str(self._rtt_ms), str(self._loss)]
        self._process = subprocess.Popen(
            ["nice", "-n", PRIORITY, sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        json.loads(self._process.stdout.readline())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        output, _ = self._process.communicate()
        self.counters = json.loads(output or "{}")
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)


def _open(name: str, namespace: str, address: str) -> int:
    """Create a device, move it into a namespace, and return the file that its packets are read from and written to."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "netns", namespace], check=True)
    inside = ["ip", "-n", namespace]
    subprocess.run([*inside, "addr", "add", f"{address}/24", "dev", name], check=True)
    subprocess.run([*inside, "link", "set", name, "up", "txqueuelen", str(_QUEUE)], check=True)
    return device


class Lane:
    """One direction of the link."""

    def __init__(self, source: int, target: int, delay_s: float, loss: float, seed: int) -> None:
        self.source, self._target, self._delay_s, self._loss = source, target, delay_s, loss
        self._draw = random.Random(seed)
        self._queue: deque[tuple[float, bytes]] = deque()
        self.carried = self.lost = 0

    def take(self) -> None:
        """Read the packets that wait at the source."""
        while True:
            try:
                packet = os.read(self.source, _PACKET_BYTES)
            except BlockingIOError:
                return
            if self._draw.random() < self._loss or len(self._queue) >= _QUEUE:
                self.lost += 1
            else:
                self._queue.append((time.monotonic() + self._delay_s, packet))

    def give(self) -> float:
        """Write the packets that are due, and return the seconds until the next packet is due."""
        now_s = time.monotonic()
        while self._queue and self._queue[0][0] <= now_s:
            os.write(self._target, self._queue.popleft()[1])
            self.carried += 1
        return max(self._queue[0][0] - now_s, 0) if self._queue else 1.0


def carry(ends: tuple[int, int], rtt_s: float, loss: float) -> dict[str, int]:
    """Carry packets until stdin closes, and return the counters."""
    lanes = [
        Lane(source, target, rtt_s / 2, loss, seed)
        for seed, (source, target) in enumerate((ends, tuple(reversed(ends))))
    ]
    sources = [lane.source for lane in lanes]
    while True:
        wait_s = min(lane.give() for lane in lanes)
        ready, _, _ = select.select([0, *sources], [], [], wait_s)
        if 0 in ready:
            break
        for lane in lanes:
            if lane.source in ready:
                lane.take()
    return {"carried": sum(lane.carried for lane in lanes), "lost": sum(lane.lost for lane in lanes)}


if __name__ == "__main__":
    server, client, rtt_ms, loss = sys.argv[1:]
    devices = _open(f"m5s{os.getpid()}", server, SERVER), _open(f"m5c{os.getpid()}", client, CLIENT)
    print("{}", flush=True)
    print(json.dumps(carry(devices, float(rtt_ms) / 1000, float(loss))), flush=True)
