"""One process of tests/repository/test_gc_processes.py: `write` snapshots of overlapping trees, or `collect`."""

import random
import sys
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.records.environment import Observed
from m5ws.records.gc import RetentionRules
from m5ws.records.store import Format
from m5ws.repository.files import trees
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.gc import execute, gc
from m5ws.repository.publishing import ObjectDeleted, repeated
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from tests.support.records import planted


def repository(store: str) -> Repository:
    return Repository.create(
        open_store(store), Format(chunk_bytes=4096, file_chunk_bytes=4096, pack_bytes=2048, small_bytes=1024)
    )


def write(store: str, folder: str, seed: str, count: str) -> None:
    """Publish `count` snapshots, and print each snapshot. Between them, leave unpublished objects."""
    draw = random.Random(int(seed))
    home = Path(folder)
    home.mkdir(parents=True)
    for _ in range(int(count)):
        names = draw.sample(range(12), 5)
        for name in range(12):
            (home / f"{name}").unlink(missing_ok=True)
        for name in names:
            (home / f"{name}").write_bytes(bytes([name]) * (200 + 700 * name))
        files = [SourceFile(path=b"%d" % name, location=home / f"{name}") for name in names]
        repo = repository(store)

        def attempt(repo: Repository = repo, files: list[SourceFile] = files) -> str:
            with Index(home.with_suffix(".index")) as index:
                tree = trees.write_tree(repo.objects, files, index).digest
            observed = repo.objects.put_record(Observed(facts={"seed": seed}))
            return planted.publish(repo, planted.snapshot(tree), observed=observed)

        if draw.random() < 0.3:
            trees.write_tree(repo.objects, files)
            continue
        while True:
            try:
                print(repeated(attempt), flush=True)
                break
            except ObjectDeleted:
                continue


def collect(store: str, home: str, rounds: str) -> None:
    """Plan and execute, without grace period, `rounds` times. Start with plans of a killed process."""
    repo = repository(store)
    for _ in range(int(rounds)):
        try:
            with execute.lock_gc(Path(home)) as holder:
                due = execute.due(repo, 0.0)
                plan = due.plan if due is not None else gc.plan(repo, RetentionRules(), 0.0, part_objects=5).id
                if plan is not None:
                    done = execute.execute(repo, plan, holder, grace_s=0.0)
                    print(done.objects, done.spared, flush=True)
        except M5Error as error:
            # A writer paused for the whole grace period of zero seconds, and is about to repair its reference.
            print(f"# {error}", flush=True)


VERBS = {"write": write, "collect": collect}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
