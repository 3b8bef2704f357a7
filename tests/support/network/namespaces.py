"""Machines of a team: processes with their own network and host name, and a server that all of them reach.

Each machine has one link to the server, which has one address for all. A link can be cut, and a machine can be lost.
This needs root, `ip` (Debian: iproute2) and `unshare`.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ADDRESS = "10.177.0.1"
"""Address of the server on each machine."""


def missing() -> str | None:
    """Return the missing programs or rights that namespaces need, or None."""
    if absent := [program for program in ("ip", "unshare") if shutil.which(program) is None]:
        return f"{' and '.join(absent)} not found (apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need the rights of the superuser"
    name = f"m5ws-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"no network namespace can be made: {tried.stderr.strip()}" if tried.returncode else None


class Machine:
    """A network namespace. Processes started in it have its host name, and end with it."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._name = f"m5ws-{os.getpid()}-{host}"
        _ip("netns", "add", self._name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *words: str) -> None:
        """Configure its network."""
        _ip("-n", self._name, *words)

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a command here. Its output is appended to `log`."""
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.host, *command]
        inside = ["ip", "netns", "exec", self._name, "unshare", "--uts", *named]
        with log.open("ab") as file:
            return subprocess.Popen(
                inside, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def lose(self) -> None:
        """Kill all its processes at once."""
        while pids := _ip("netns", "pids", self._name).split():
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def close(self) -> None:
        self.lose()
        _ip("netns", "del", self._name)


class Network:
    """A server and the machines linked to it."""

    def __init__(self, server: Machine, machines: Mapping[str, Machine]) -> None:
        self.server = server
        self.machines = machines
        server.ip("address", "add", f"{ADDRESS}/32", "dev", "lo")
        for number, machine in enumerate(machines.values(), 1):
            here, there = f"10.177.{number}.1", self.address(machine)
            server.ip("link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", machine._name)
            server.ip("address", "add", f"{here}/24", "dev", f"to{number}")
            server.ip("link", "set", f"to{number}", "up")
            machine.ip("address", "add", f"{there}/24", "dev", "eth0")
            self.link(machine, up=True)

    def address(self, machine: Machine) -> str:
        """Return a machine's address as seen by the server."""
        return f"10.177.{list(self.machines.values()).index(machine) + 1}.2"

    def link(self, machine: Machine, *, up: bool) -> None:
        """Cut a machine's link, or restore it."""
        machine.ip("link", "set", "eth0", "up" if up else "down")
        if up:
            number = list(self.machines.values()).index(machine) + 1
            machine.ip("route", "replace", ADDRESS, "via", f"10.177.{number}.1")


@contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """Create machines with these host names, linked to a server, until the context ends."""
    made: list[Machine] = []
    try:
        made.extend(Machine(host) for host in ("server", *hosts))
        yield Network(made[0], {machine.host: machine for machine in made[1:]})
    finally:
        for machine in made:
            machine.close()


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
