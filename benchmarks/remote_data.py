"""The data stage of a snapshot for a dataset that stays in DVC's remote, against `dvc add` and `dvc push`.

    python benchmarks/remote_data.py [FILES]

Makes FILES files of 1 KiB (default: 20,000), in one run: `dvc add`, `dvc push` to a folder, then the data stage alone
(the list of files from the remote, its MD5, the presence and size of each file, the manifest), five times.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from m5ws.config.settings import Settings
from m5ws.environment.observe.machine import Machine
from m5ws.repository.files.index import Index
from m5ws.repository.repository import Repository
from m5ws.snapshot import remote
from m5ws.snapshot.context import CaptureContext
from m5ws.snapshot.sources.dvc import Dvc
from m5ws.snapshot.sources.git import Git
from m5ws.store.local import LocalStore


def run(root: Path, *command: str) -> float:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(root.parent / "site")}
    began_s = time.perf_counter()
    subprocess.run(command, cwd=root, check=True, env=environment, capture_output=True)
    return time.perf_counter() - began_s


def stage(root: Path, repo: Repository) -> float:
    began_s = time.perf_counter()
    with Index(root.parent / f"index-{os.urandom(4).hex()}") as index:
        context = CaptureContext(
            root=root, settings=Settings(), repo=repo, source=Git(), datasets=Dvc(), probe=None,
            observer=Machine(root=root), index=index, staging=root.parent / "staging", dry_run=False, observe=False,
            progress=None,
        )  # fmt: skip
        remote.pin(context, Dvc().find(root, [b"data.dvc"]))
    return time.perf_counter() - began_s


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "w")
        for number in range(files):
            path = root / "data" / f"{number % 100:02d}" / f"{number}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(number.to_bytes(8, "big") * 128)
        dvc = (sys.executable, "-m", "dvc")
        run(root, "git", "init", "-q")
        run(root, *dvc, "init", "-q")
        run(root, *dvc, "remote", "add", "-q", "-d", "near", "../remote")
        add_s, push_s = run(root, *dvc, "add", "-q", "data"), run(root, *dvc, "push", "-q")
        repo = Repository.create(LocalStore(Path(folder, "store")))
        stages = [stage(root, repo) for _ in range(5)]
        print(f"files: {files:,}")
        print(f"dvc add: {add_s:.2f} s, dvc push: {push_s:.2f} s")
        print(f"data stage: first {stages[0]:.2f} s, median {median(stages):.2f} s")
        print(f"ratio: first {(add_s + push_s) / stages[0]:.0f}, median {(add_s + push_s) / median(stages):.0f}")


if __name__ == "__main__":
    main()
