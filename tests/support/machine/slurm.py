"""A real Slurm with several nodes on this machine, from the distribution's packages, without systemd and cgroups."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import loud_skip
from tests.support.network import ports
from tests.support.waiting import wait_for

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "setpriv")
PACKAGES = "slurmctld slurmd slurm-client munge"
_CONFIGURATION = """\
ClusterName=m5
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
# Names.
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
# Places.
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
# Plugins.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=2
# Times.
ReturnToService=2
SlurmdTimeout=10
KillWait=20
MinJobAge={forget_s}
JobRequeue=1
# Accounts.
AccountingStorageType=accounting_storage/{storage}
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounts_port}
AccountingStoragePass={folder}/munge/socket
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# Nodes.
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=n[1-{nodes}] MaxTime=INFINITE State=UP PriorityTier=10
"""

_ACCOUNTS = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounts
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


class Slurm:
    """A running Slurm. Its commands need the variable SLURM_CONF, `configuration`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self.daemons: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}

    def call(self, *words: str) -> str:
        """Return the output of a command of Slurm."""
        environment = os.environ | {"SLURM_CONF": str(self.configuration)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def start(self, *words: str) -> None:
        """Start a daemon."""
        command = [*words, "-f", str(self.configuration)]
        self.daemons[words] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_and_restart(self, program: str) -> bool:
        """Kill all daemons of a program by kill -9, and start them again a second later."""
        killed = [words for words in self.daemons if words[0] == program]
        for words in killed:
            self.daemons[words].kill()
            self.daemons[words].wait()
        time.sleep(1)
        for words in killed:
            self.start(*words)
        wait_for(self._answers)
        return True

    def _answers(self) -> bool:
        environment = os.environ | {"SLURM_CONF": str(self.configuration)}
        return subprocess.run(("squeue", "-h"), env=environment, capture_output=True, check=False).returncode == 0


@contextmanager
def running(folder: Path, nodes: int = 2, *, with_accounts: bool = False) -> Iterator[Slurm]:
    """Yield a Slurm whose nodes are idle, or skip the test loudly if this machine has none.

    With accounts, its controller forgets an ended job soon, and `sacct` knows the job.
    """
    needed = (*PROGRAMS, "slurmdbd", "mariadbd") if with_accounts else PROGRAMS
    packages = f"{PACKAGES} slurmdbd mariadb-server" if with_accounts else PACKAGES
    if absent := [program for program in needed if shutil.which(program) is None]:
        loud_skip(f"nothing on Slurm: {', '.join(absent)} not found (apt-get install {packages})")
    if os.getuid() != 0:
        loud_skip("nothing on Slurm: its daemons need root here")
    munge: subprocess.Popen[bytes] | None = None
    slurm = Slurm(folder)
    host = socket.gethostname().partition(".")[0]
    port = ports.free(nodes + 2)
    text = _CONFIGURATION.format(
        host=host,
        folder=folder,
        nodes=nodes,
        port=port,
        ports=f"{port + 1}-{port + nodes}",
        accounts_port=port + nodes + 1,
        storage="slurmdbd" if with_accounts else "none",
        forget_s=2 if with_accounts else 300,
    )
    slurm.configuration.write_text(text)
    (folder / "state").mkdir()
    for parent in (folder, *folder.parents[:-1]):
        parent.chmod(parent.stat().st_mode | 0o011)  # munged runs as another user.
    try:
        munge = _start_munge(folder / "munge")
        wait_for((folder / "munge" / "socket").exists)
        if with_accounts:
            _start_accounts(slurm, host, port + nodes + 1)
        slurm.start("slurmctld", "-D")
        for number in range(1, nodes + 1):
            (folder / f"n{number}").mkdir()
            slurm.start("slurmd", "-D", "-N", f"n{number}")
        wait_for(lambda: _idle(slurm) == nodes)
        yield slurm
    finally:
        started = [*slurm.daemons.values(), *filter(None, (munge,))]
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start_accounts(slurm: Slurm, host: str, port: int) -> None:
    """Start Slurm's accounting on a MariaDB of its own."""
    folder = slurm.folder
    data, place = folder / "mariadb", folder / "mariadb.socket"
    made = ("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db")
    subprocess.run(made, capture_output=True, check=True)
    options = (f"--datadir={data}", f"--socket={place}", "--skip-networking", "--user=root")
    server = ("mariadbd", "--no-defaults", *options)
    slurm.daemons[server] = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(place.exists)
    path = folder / "slurmdbd.conf"
    path.write_text(_ACCOUNTS.format(folder=folder, host=host, port=port))
    path.chmod(0o600)
    environment = os.environ | {"SLURM_CONF": str(slurm.configuration), "MYSQL_UNIX_PORT": str(place)}
    daemon = ("slurmdbd", "-D")
    slurm.daemons[daemon] = subprocess.Popen(
        daemon, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    words = ("sacctmgr", "--immediate", "add", "cluster", "m5")
    wait_for(lambda: subprocess.run(words, env=environment, capture_output=True, check=False).returncode == 0)


def _start_munge(folder: Path) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for path in (folder, key):
        shutil.chown(path, "munge", "munge")
    folder.chmod(0o755)
    files = (f"--{name}-file={folder}/{name}" for name in ("key", "pid", "log", "seed"))
    drop = ("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups")
    command = [*drop, "munged", "--foreground", "--force", f"--socket={folder}/socket", *files]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _idle(slurm: Slurm) -> int:
    words = ("sinfo", "--noheader", "--states=idle", "--format=%D", "--partition=main")
    environment = os.environ | {"SLURM_CONF": str(slurm.configuration)}
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout.strip()
    return int(found or 0)
