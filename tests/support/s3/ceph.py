"""A real Ceph RGW from the distribution's packages, in a directory, without systemd.

`hold` returns the server shared by all processes of a test session, and starts it on first use. A guardian process
starts the daemons. Each user holds a shared lock on a file, and the guardian waits for an exclusive lock on it. So the
kernel counts the users, including killed users. The guardian's end kills the daemons.

`python tests/support/s3/ceph.py DIRECTORY` is that guardian.
"""

import fcntl
import http.client
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

PROGRAMS = (
    *("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "openssl", "radosgw", "radosgw-admin"),
    "setpriv",
)
PACKAGES = "ceph-common ceph-mon ceph-osd radosgw openssl"
# The first user owns the buckets. Bucket policies give permissions to the other users.
USERS = ("admin", "operator", "reader", "researcher")
_START_S = 120.0

_CONFIGURATION = """\
# Identity and keys.
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon_port}/0,v1:127.0.0.1:{mon_port_v1}/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {directory}/keyring
# Files.
run_dir = {directory}
admin_socket =
pid_file =
log_file = {directory}/$name.log
mon_cluster_log_file = {directory}/cluster.log
crash_dir = {directory}
# One replica; few groups.
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
# Without these, a start waits seconds for votes that one monitor does not need.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
# The monitor.
[mon]
mon_data = {directory}/mon
mon_tick_interval = 1
mon_data_avail_warn = 2
mon_data_avail_crit = 1
# Storage.
[osd]
osd_data = {directory}/osd
osd_objectstore = bluestore
osd_memory_target = 939524096
osd_max_pg_log_entries = 500
osd_op_queue = wpq
# The next file is sparse.
bluestore_block_size = 21474836480
bluestore_fsck_on_mkfs = false
bluestore_fsck_on_mount = false
# The gateway.
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1 ssl_endpoint=127.0.0.1:{secure_port} \\
    ssl_certificate={directory}/server.pem ssl_private_key={directory}/server.key
rgw_thread_pool_size = 64
rgw_dns_name = localhost
rgw_enable_ops_log = false
rgw_enable_usage_log = false
rgw_override_bucket_index_max_shards = 1
rgw_gc_obj_min_wait = 5
rgw_gc_processor_period = 10
"""
_CAPABILITIES: Mapping[str, Sequence[str]] = {
    "mon.": ("mon", "allow *"),
    "client.admin": ("mon", "allow *", "osd", "allow *", "mgr", "allow *"),
    "client.rgw": ("mon", "allow rw", "osd", "allow rwx"),
    "osd.0": ("mon", "allow profile osd", "osd", "allow *"),
}


class CephFailed(Exception):
    """An installed Ceph did not start. The message has the ends of its logs."""


class Keys(msgspec.Struct, frozen=True):
    """Credentials of a user."""

    user: str
    access_key: str
    secret_key: str

    @property
    def arn(self) -> str:
        """The user's name in bucket policies."""
        return f"arn:aws:iam:::user/{self.user}"


class Ceph(msgspec.Struct, frozen=True):
    """A running server: its endpoint, its users, and the process that guards it.

    `secure_endpoint` uses TLS, with a certificate of the authority in the file `authority`.
    """

    endpoint: str
    secure_endpoint: str
    authority: str
    port: int
    users: dict[str, Keys]
    directory: str
    guardian: int
    version: str
    seconds: float


def missing() -> tuple[str, ...]:
    """Return the programs that a server needs and this machine lacks."""
    return tuple(name for name in PROGRAMS if shutil.which(name) is None)


@contextmanager
def hold(root: Path) -> Iterator[Ceph]:
    """Return the server of `root`, a directory shared by all processes of a session. Raises CephFailed."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "starting", "w") as starting:
        # One process starts the server; the other processes wait here and then use it.
        fcntl.flock(starting, fcntl.LOCK_EX)
        ceph, lock = _join(root) or _start(root)
    try:
        yield ceph
    finally:
        os.close(lock)


def _join(root: Path) -> tuple[Ceph, int] | None:
    """Return the running server and a lock that keeps it running; None if there is none, or it is ending."""
    try:
        ceph = msgspec.json.decode((root / "server").read_bytes(), type=Ceph)
        lock = os.open(Path(ceph.directory) / "users", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # The guardian has the lock: its server is ending.
        os.close(lock)
        return None
    if not answers(ceph.port):
        os.close(lock)
        return None
    return ceph, lock


def _start(root: Path) -> tuple[Ceph, int]:
    """Start a guardian.

    Return its server, and the lock that keeps it running. Retries if other processes took the ports.
    """
    problem = ""
    for _ in range(3):
        directory = root / secrets.token_hex(4)
        directory.mkdir()
        lock = os.open(directory / "users", os.O_RDONLY | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        # In its own session: Ctrl-C goes to the tests, and the server stays until they end.
        guardian = subprocess.Popen(
            [sys.executable, __file__, str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert guardian.stdout is not None
        ready, _, _ = select.select([guardian.stdout], [], [], _START_S)
        if ready and (line := guardian.stdout.readline()):
            guardian.stdout.close()
            (root / "server").write_bytes(line)
            return msgspec.json.decode(line, type=Ceph), lock
        guardian.kill()
        guardian.wait()
        guardian.stdout.close()
        os.close(lock)
        problem = _log_ends(directory)
        shutil.rmtree(directory, ignore_errors=True)
    raise CephFailed(f"Ceph did not start:\n{problem}")


def _log_ends(directory: Path) -> str:
    logs = sorted(directory.glob("*.log"))
    return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def _guard(directory: Path) -> None:
    """Start the daemons, report it on stdout, and end them with all their data after the last user."""
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        ceph = _daemons(directory, daemons)
        print(msgspec.json.encode(ceph).decode(), flush=True)
        with open(directory / "users") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        # No data is kept, so an orderly shutdown is not needed.
        for daemon in daemons:
            daemon.kill()
        for daemon in daemons:
            daemon.wait()
    shutil.rmtree(directory, ignore_errors=True)


def _daemons(directory: Path, daemons: "list[subprocess.Popen[bytes]]") -> Ceph:
    began = time.monotonic()
    mon_port, mon_port_v1, port, secure_port = free_ports(4)
    fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
    configuration = directory / "ceph.conf"
    ports = {"mon_port": mon_port, "mon_port_v1": mon_port_v1, "port": port, "secure_port": secure_port}
    configuration.write_text(_CONFIGURATION.format(fsid=fsid, directory=directory, **ports))
    _certificates(directory)
    os.environ["CEPH_CONF"] = str(configuration)
    for name in ("mon", "osd"):
        (directory / name).mkdir()
    _keyring(directory)
    monmap = str(directory / "monmap")
    addresses = f"[v2:127.0.0.1:{mon_port}/0,v1:127.0.0.1:{mon_port_v1}/0]"
    _call("monmaptool", "--create", "--fsid", fsid, "--addv", "a", addresses, monmap)
    _call("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", str(directory / "keyring"))
    daemons.append(_daemon("ceph-mon", "-i", "a", "-f"))
    _ceph("config", "set", "mon", "auth_allow_insecure_global_id_reclaim", "false")
    _ceph("auth", "import", "-i", str(directory / "keyring"))
    _ceph("osd", "new", osd)
    _call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
    daemons.append(_daemon("ceph-osd", "-i", "0", "-f"))
    _until(lambda: b"1 up" in _ceph("osd", "stat"), daemons)
    # A gateway creates them with the first bucket, which would wait for it.
    for pool in ("index", "data", "non-ec"):
        _ceph("osd", "pool", "create", f"default.rgw.buckets.{pool}")
        _ceph("osd", "pool", "application", "enable", f"default.rgw.buckets.{pool}", "rgw")
    daemons.append(_daemon("radosgw", "-n", "client.rgw", "-f"))
    _until(lambda: answers(port), daemons)
    return Ceph(
        endpoint=f"http://127.0.0.1:{port}",
        secure_endpoint=f"https://127.0.0.1:{secure_port}",
        authority=str(directory / "authority.pem"),
        port=port,
        users=_make_users(),
        directory=str(directory),
        guardian=os.getpid(),
        version=_call("ceph", "--version").decode().strip(),
        seconds=round(time.monotonic() - began, 1),
    )


def _certificates(directory: Path) -> None:
    """Create an authority, and a certificate for this machine's loopback."""
    common = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    authority, key = str(directory / "authority.pem"), str(directory / "authority.key")
    _call(*common, "-subj", "/CN=m5ws tests", "-out", authority, "-keyout", key)
    server = ("-out", str(directory / "server.pem"), "-keyout", str(directory / "server.key"))
    extensions = ("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    _call(*common, "-CA", authority, "-CAkey", key, "-subj", "/CN=127.0.0.1", *extensions, *server)


def _keyring(directory: Path) -> None:
    path = str(directory / "keyring")
    for number, (name, capabilities) in enumerate(_CAPABILITIES.items()):
        pairs = zip(capabilities[::2], capabilities[1::2], strict=True)
        allowed = [word for service, what in pairs for word in ("--cap", service, what)]
        create = ["--create-keyring"] if number == 0 else []
        _call("ceph-authtool", *create, path, "--gen-key", "-n", name, *allowed)


def _make_users() -> dict[str, Keys]:
    users = {name: Keys(name, f"AK{name.upper()}", secrets.token_hex(16)) for name in USERS}
    made = [_call_beside("radosgw-admin", "user", "create", *_described(keys)) for keys in users.values()]
    if any(process.wait() for process in made):
        raise CephFailed("radosgw-admin did not make the users")
    return users


def _described(keys: Keys) -> tuple[str, ...]:
    name = (f"--uid={keys.user}", f"--display-name={keys.user}")
    return (*name, f"--access-key={keys.access_key}", f"--secret-key={keys.secret_key}")


def _ceph(*arguments: str) -> bytes:
    return _call("ceph", "--connect-timeout", "20", *arguments)


def _call(*command: str) -> bytes:
    return subprocess.run(command, check=True, capture_output=True).stdout


def _call_beside(*command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _daemon(*command: str) -> "subprocess.Popen[bytes]":
    # The kernel kills it when the guardian dies, for any reason.
    return _call_beside("setpriv", "--pdeathsig", "KILL", *command)


def _until(there: Callable[[], bool], daemons: "Sequence[subprocess.Popen[bytes]]") -> None:
    while not there():
        if any(daemon.poll() is not None for daemon in daemons):
            raise CephFailed("a daemon ended")
        time.sleep(0.05)


def answers(port: int) -> bool:
    """Return True if an HTTP server responds at a port of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def free_ports(number: int) -> list[int]:
    """Return ports of this machine that are free at this moment."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _guard(Path(sys.argv[1]).absolute())
