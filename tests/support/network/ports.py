"""Ports for servers that bind by themselves."""

import secrets
import socket
from pathlib import Path

_FIRST = 10_240
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free(count: int = 1, host: str = "127.0.0.1") -> int:
    """Return the first of ports in a row that are free at an address.

    They are below the ports that Linux gives to clients. So no connection takes one before its server does, and none
    that waits for the server reaches itself: a client with this port of its own would.
    """
    end = int(_RANGE.read_text().split()[0])
    while True:
        first = _FIRST + secrets.randbelow(max(end - count - _FIRST, 1))
        if all(_is_free(host, port) for port in range(first, first + count)):
            return first


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind((host, port))
        except OSError:
            return False
    return True
