"""Network namespaces of this machine on a bridge, each with an address: machines of a small network. They need root."""

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path


def make_bridge(stack: ExitStack, name: str, address: str) -> None:
    """Create a bridge, on which this machine has an address."""
    call("ip", "link", "add", name, "type", "bridge")
    stack.callback(call, "ip", "link", "del", name)
    call("ip", "address", "add", address, "dev", name)
    call("ip", "link", "set", name, "up")


def connect(stack: ExitStack, namespace: str, bridge: str, link: str, address: str, gateway: str | None = None) -> None:
    """Create a network namespace with an address, on a bridge."""
    call("ip", "netns", "add", namespace)
    stack.callback(call, "ip", "netns", "del", namespace)
    _refuse_names(stack, namespace)
    call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    call("ip", "link", "set", link, "master", bridge, "up")
    for words in (
        ("address", "add", f"{address}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("link", "set", "lo", "up"),
    ):
        call("ip", "-n", namespace, *words)
    if gateway is not None:
        call("ip", "-n", namespace, "route", "add", "default", "via", gateway)


def _refuse_names(stack: ExitStack, namespace: str) -> None:
    """Let programs in a namespace get no name of another machine at once, and not after ten seconds without answers."""
    folder = Path("/etc/netns", namespace)
    folder.mkdir(parents=True)
    stack.callback(shutil.rmtree, folder)
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")


def call(*words: str) -> None:
    """Run a program, and fail the test with its errors."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
