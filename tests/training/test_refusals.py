"""A rank under `[run] inputs = "pinned"` refuses hosts, and notes refused files that an error does not name."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m5ws.launch import known_places, landlock
from m5ws.records import codec
from m5ws.records import reads as recorded
from m5ws.records.launch import Access
from tests.conftest import loud_skip
from tests.support.paths import ROOT
from tests.support.ranks.orders import orders

_SCRIPT = Path(__file__).parent / "scripts" / "refused.py"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("", 0)) as listening:
        yield listening


def _own_address() -> str:
    """Return an address of this machine that is no loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
        try:
            probing.connect(("192.0.2.254", 9))
        except OSError:
            loud_skip("this machine has no network")
        return str(probing.getsockname()[0])


def _result(tmp_path: Path, server: socket.socket, allowed: str, *hosts: str, file: str = "") -> Any:
    """Return the results of connections to hosts, and the notes, of a limited process that may use one other host."""
    read = (*known_places.python_folders(), str(ROOT), "/usr", "/bin", "/lib", "/lib64", "/etc", "/proc")
    access = Access(read=read, write=(str(tmp_path / "rank"), "/dev/null"))
    context = orders(tmp_path / "rank", access=access)
    (tmp_path / "rank" / "context").write_bytes(codec.encode(context))
    order = {
        "context": str(tmp_path / "rank" / "context"),
        "allowed": allowed,
        "hosts": hosts,
        "port": server.getsockname()[1],
        "file": file,
    }
    argv = landlock.command([sys.executable, str(_SCRIPT), json.dumps(order)], access.read, access.write)
    connected, notes = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    return connected, [tuple(note) for note in notes]


def test_only_loopback_and_allowed_hosts_are_reached(tmp_path: Path, server: socket.socket) -> None:
    address = _own_address()
    # A name that resolves to the address without a name server: inet_aton(3) reads the number.
    name = str(int.from_bytes(socket.inet_aton(address), "big"))
    assert _result(tmp_path, server, "", "127.0.0.1", address, name) == (
        ["connected", "HostRefused", "HostRefused"],
        [(recorded.HOST, address), (recorded.HOST, name)],
    )
    assert _result(tmp_path / "address", server, address, address) == (["connected"], [])
    assert _result(tmp_path / "name", server, name, address, name, address) == (
        ["HostRefused", "connected", "connected"],
        [(recorded.HOST, address)],
    )


def test_a_file_in_a_variable_of_the_failed_frames_is_noted(tmp_path: Path, server: socket.socket) -> None:
    (tmp_path / "outside").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    for name, noted in (("outside", [(recorded.READ, str(tmp_path / "outside"))]), ("missing", [])):
        assert _result(tmp_path / name[:3], server, "", file=str(tmp_path / name)) == ([], noted)
    assert _result(tmp_path / "through", server, "", file=str(tmp_path / "link")) == (
        [],
        [(recorded.READ, str(tmp_path / "link"))],
    )
    assert _result(tmp_path / "own", server, "", file="/etc/passwd") == ([], [])
