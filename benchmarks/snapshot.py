"""Cost of a second `m5ws snapshot` of an unchanged workspace, beside tools with a similar task.

    python benchmarks/snapshot.py [--files 20000] [--rounds 7] [--only TOOL …] [--s3] [--json FILE]

Every row is a whole process, start-up included, measured turn by turn in one run: `git status`, `git status` with all
untracked files, `m5ws snapshot` of the same, and of the same files as data that git ignores. `dvc status` and `restic
backup` are measured if they are installed. With --s3 a Ceph RGW is started (Debian: ceph-mon ceph-osd radosgw
ceph-common), and m5ws is also measured with its store there, by https; the server shares this machine. CPU time, of the
process and its children, varies less than the clock on a busy machine.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from store_tools import Server

sys.path.insert(0, str(Path(__file__).parents[1]))

Row = dict[str, float]
FORMS = {"m5ws snapshot -m": ["snapshot", "-m", "a message"]}
"""Other forms of the command, by row."""
_M5WS = str(Path(sys.executable).with_name("m5ws"))
_OURS = ("m5ws snapshot", *FORMS, "m5ws snapshot of data")
TOOLS = ("git status", "git status -uall", *_OURS, "dvc status", "restic backup")
_REMOTE = "store in S3"
Command = tuple[Path, list[str]]
"""The directory and words of a command."""


def make_workspace(root: Path, files: int) -> None:
    """Write a workspace of small source files, 100 to a folder, and commit it."""
    for number in range(files):
        path = root / f"package_{number // 100:03d}" / "inner" / f"module_{number % 100:03d}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# module {number}\n" + "value = 1\n" * (10 + number % 40))
    (root / "m5ws.toml").write_text('name = "benchmark"\n')
    (root / ".gitignore").write_text(".m5ws/\n/restic/\n")
    _commit(root)


def make_copy(root: Path, files: Path, store: str) -> None:
    """Write a workspace of the same files, with its store elsewhere."""
    shutil.copytree(files, root, ignore=shutil.ignore_patterns(".git", ".m5ws"))
    (root / "m5ws.toml").write_text(f'name = "benchmark"\n{store}')
    _commit(root)


def make_data_workspace(root: Path, files: Path, store: str = "") -> None:
    """Write a workspace with `files` as data that git ignores."""
    shutil.copytree(files, root / "data", ignore=shutil.ignore_patterns(".git", ".m5ws"))
    (root / "train.py").write_text("print(1)\n")
    (root / "m5ws.toml").write_text(f'name = "benchmark"\n[data]\npaths = ["data"]\n{store}')
    (root / ".gitignore").write_text(".m5ws/\n/data/\n")
    _commit(root)


def _commit(root: Path) -> None:
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "all")):
        subprocess.run(["git", "-c", "user.name=b", "-c", "user.email=b@example.org", *command], cwd=root, check=True)


def peers(root: Path, only: Sequence[str], server: Server | None) -> dict[str, Command]:
    """Return the commands to compare, by name. Each is run three times before, so that its caches are full."""
    commands: dict[str, Command] = {
        "git status": (root, ["git", "status"]),
        "git status -uall": (root, ["git", "status", "--porcelain=v2", "--untracked-files=all"]),
        "m5ws snapshot": (root, [_M5WS, "snapshot"]),
        **{name: (root, [_M5WS, *words]) for name, words in FORMS.items()},
    }
    if "m5ws snapshot of data" in only:
        make_data_workspace(root.parent / "with-data", root)
        commands["m5ws snapshot of data"] = root.parent / "with-data", [_M5WS, "snapshot"]
    for name, make in (("m5ws snapshot", make_copy), ("m5ws snapshot of data", make_data_workspace)):
        if server is not None and name in only:
            place = root.parent / f"{make.__name__}-remote"
            make(place, root, _remote(server, make.__name__.replace("_", "-")))
            commands[f"{name}, {_REMOTE}"] = place, [_M5WS, "snapshot"]
    dvc = Path(sys.executable).with_name("dvc")
    if "dvc status" in only and dvc.exists():
        tracked = root.parent / "dvc"
        shutil.copytree(root, tracked / "data", ignore=shutil.ignore_patterns(".git", ".m5ws"))
        subprocess.run([dvc, "init", "--no-scm", "-q"], cwd=tracked, check=True)
        subprocess.run([dvc, "add", "-q", "data"], cwd=tracked, check=True)
        commands["dvc status"] = root, [str(dvc), "--cd", str(tracked), "status", "-q"]
    if "restic backup" in only and shutil.which("restic"):
        repository = ["restic", "-r", str(root.parent / "restic"), "--insecure-no-password"]
        if subprocess.run([*repository, "init"], check=False, capture_output=True).returncode == 0:
            commands["restic backup"] = root, [*repository, "backup", "-q", "--exclude", ".git", str(root)]
    return {name: command for name, command in commands.items() if name.removesuffix(f", {_REMOTE}") in only}


def _remote(server: Server, prefix: str) -> str:
    return f"""[store]
url = "s3://{server.bucket}/{prefix}"
region = "us-east-1"
endpoint_url = "{server.endpoint}"
integrity = "crc64nvme"
"""


@contextlib.contextmanager
def remote(folder: Path, wanted: bool) -> Iterator[Server | None]:
    """Start an S3 server, if it is `wanted`."""
    if not wanted:
        yield None
        return
    from store import make_bucket

    from tests.support.s3 import ceph

    with ceph.hold(folder) as server:
        keys = server.users["admin"]
        found = Server(server.secure_endpoint, "benchmark", keys.access_key, keys.secret_key, server.authority)
        make_bucket(found)
        yield found


def measure(command: Command, environment: Mapping[str, str]) -> Row:
    """Run a command once and return its wall and CPU time in milliseconds."""
    root, words = command
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(words, cwd=root, env=environment, check=True, capture_output=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_ms": 1e3 * wall, "cpu_ms": 1e3 * cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=TOOLS, choices=TOOLS)
    parser.add_argument("--s3", action="store_true", help="measure m5ws with its store in S3 too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, remote(Path(folder) / "ceph", arguments.s3) as server:
        variables = server.environment if server is not None else {}
        environment = {**os.environ, "DVC_NO_ANALYTICS": "1", **variables}
        root = Path(folder) / "workspace"
        make_workspace(root, arguments.files)
        first = measure((root, [_M5WS, "snapshot"]), environment)
        commands = peers(root, ["git status", *arguments.only], server)
        time.sleep(2.5)  # files that changed a moment ago are not cached, since they could change again unnoticed
        for command in 3 * [*commands.values()]:
            measure(command, environment)
            time.sleep(0.1)
        rounds = [
            {name: measure(command, environment) for name, command in commands.items()} for _ in range(arguments.rounds)
        ]
    result = {
        name: {key: statistics.median(r[name][key] for r in rounds) for key in ("wall_ms", "cpu_ms")}
        for name in commands
    }
    base = result["git status"]
    print(f"{arguments.files:,} files, medians of {arguments.rounds}; first snapshot {first['wall_ms']:,.0f} ms\n")
    print("| unchanged workspace | wall ms | CPU ms | wall, times `git status` |\n|---|---:|---:|---:|")
    for name, row in result.items():
        print(f"| {name} | {row['wall_ms']:,.0f} | {row['cpu_ms']:,.0f} | {row['wall_ms'] / base['wall_ms']:.1f} |")
    if arguments.json:
        machine = {"python": platform.python_version(), "kernel": platform.release(), "cpus": os.cpu_count()}
        document = {
            "files": arguments.files,
            "rounds": arguments.rounds,
            "machine": machine,
            "first": first,
            "median": result,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
