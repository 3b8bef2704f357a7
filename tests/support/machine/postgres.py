"""A PostgreSQL server from the distribution's package, in a folder of its own, without systemd."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.network import ports

PACKAGE = "postgresql"
_USER = "postgres"


def programs() -> Path | None:
    """Return the folder of the newest PostgreSQL's programs; None without one."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Yield the address of a new, empty server. PostgreSQL refuses to run as root, who starts it as its own user."""
    port = ports.free()
    # Outside of `tmp_path`, whose parents belong to root alone.
    data = Path(tempfile.mkdtemp(prefix="m5ws-postgres-"))
    prefix: list[str] = []
    if os.getuid() == 0:
        owner = pwd.getpwnam(_USER)
        os.chown(data, owner.pw_uid, owner.pw_gid)
        prefix = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    control = [*prefix, str(folder / "pg_ctl"), "-D", str(data), "-w"]
    try:
        made = [*prefix, str(folder / "initdb"), "-D", str(data), "-U", _USER, "-A", "trust", "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, cwd=data)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        log = ["-l", str(data / "log"), "-o", options]
        subprocess.run([*control, *log, "start"], check=True, stdout=subprocess.DEVNULL, cwd=data)
        try:
            yield f"postgresql+psycopg2://{_USER}@127.0.0.1:{port}/{_USER}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL, cwd=data)
    finally:
        shutil.rmtree(data, ignore_errors=True)
