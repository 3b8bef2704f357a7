"""The network interfaces of this machine: their addresses, and the interface that leads to another machine."""

import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from m5ws.errors import UsageError

_SIOCGIFADDR = 0x8915  # netdevice(7): the address of an interface.
_ANY_PORT = 9
_ELSEWHERE = "192.0.2.1"  # RFC 5737: an address that no machine has.


def interface_to(host: str) -> str:
    """Return the interface through which packets to `host` leave. Raises UsageError for a host that is unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket sends nothing. The kernel looks the route up.
            probe.connect((host, _ANY_PORT))
            own = probe.getsockname()[0]
            return next(name for _, name in socket.if_nameindex() if _address(probe, name) == own)
    except (OSError, StopIteration) as error:
        raise UsageError(f"no network interface leads to {host}: {error}", hint="Set GLOO_SOCKET_IFNAME.") from error


def address_here() -> str:
    """Return this machine's address for packets to machines of other networks. Raises UsageError without a route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((_ELSEWHERE, _ANY_PORT))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(f"this node has no default route: {error}", hint="Set M5WS_MASTER to HOST:PORT.") from error


def own_addresses() -> Iterator[str]:
    """Yield the IPv4 addresses of this machine."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        yield from filter(None, (_address(probe, name) for _, name in socket.if_nameindex()))


def _address(opened: socket.socket, interface: str) -> str | None:
    """Return the IPv4 address of an interface, None without one."""
    try:
        found = fcntl.ioctl(opened.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()))
    except OSError:
        return None
    return socket.inet_ntoa(found[20:24])
