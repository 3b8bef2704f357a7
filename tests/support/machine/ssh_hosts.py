"""Hosts that are reached by ssh: network namespaces of this machine, each with a real OpenSSH server."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from tests.conftest import loud_skip
from tests.support.machine import namespaces
from tests.support.waiting import wait_for

PROGRAMS = ("ip", "ssh", "ssh-keygen", "sshd")
PACKAGES = "iproute2 openssh-client openssh-server"
_SERVER = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv HOME={folder}/home
"""
_CLIENT = """\
Host {name}
    HostName {address}
"""
_ALL = """\
Host *
    IdentityFile {folder}/user_key
    UserKnownHostsFile /dev/null
    StrictHostKeyChecking no
    LogLevel ERROR
"""


class Hosts(msgspec.Struct, frozen=True):
    """Running hosts by name, with their addresses and namespaces. `programs` is a folder with `ssh`, for PATH."""

    folder: Path
    programs: Path
    addresses: dict[str, str]
    namespaces: dict[str, str]


@contextmanager
def running(folder: Path, count: int = 2) -> Iterator[Hosts]:
    """Yield hosts that answer, or skip the test loudly if this machine cannot have them."""
    if absent := [program for program in PROGRAMS if shutil.which(program) is None]:
        loud_skip(f"no hosts by ssh: {', '.join(absent)} not found (apt-get install {PACKAGES})")
    if os.getuid() != 0:
        loud_skip("no hosts by ssh: network namespaces need root")
    for name in ("host_key", "user_key"):
        namespaces.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    for name in ("home", "bin"):
        (folder / name).mkdir()
    Path("/run/sshd").mkdir(exist_ok=True)
    tag, net = f"m5t{secrets.token_hex(3)}", f"198.18.{os.getpid() % 250}"
    with ExitStack() as stack:
        namespaces.make_bridge(stack, tag, f"{net}.1/24")
        addresses = {f"box{number}": f"{net}.{number + 2}" for number in range(count)}
        spaces = {name: f"{tag}-{name}" for name in addresses}
        for number, (name, address) in enumerate(addresses.items()):
            namespaces.connect(stack, spaces[name], tag, f"{tag}v{number}", address)
            settings = folder / f"sshd-{name}"
            settings.write_text(_SERVER.format(address=address, folder=folder))
            command = ["ip", "netns", "exec", spaces[name], shutil.which("sshd") or "sshd", "-D", "-f", str(settings)]
            server = subprocess.Popen(command, stderr=(folder / f"sshd-{name}.log").open("wb"))
            stack.callback(server.wait)
            stack.callback(server.terminate)
        clients = [_CLIENT.format(name=name, address=address) for name, address in addresses.items()]
        (folder / "ssh_config").write_text("".join((*clients, _ALL.format(folder=folder))))
        program = folder / "bin" / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        program.chmod(0o755)
        for name in addresses:
            wait_for(partial(_answers, program, name))
        yield Hosts(folder, folder / "bin", addresses, spaces)


def _answers(program: Path, name: str) -> bool:
    return subprocess.run([program, name, "true"], capture_output=True, check=False).returncode == 0
