"""The needs of a planned run come from its own job, and not from other jobs of a shared store."""

import os
from pathlib import Path

import msgspec

from m5ws.preflight import needs, node
from m5ws.records.run import LaunchSpec
from m5ws.repository.references import run_index, runs
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.records import planted


def test_sizes_come_from_the_newest_run_of_the_same_snapshot_and_command(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store", durable=False))
    code = planted.tree(repo, tmp_path / "tree", {"x.py": "print()"})
    own, other = (planted.publish(repo, planted.snapshot(code, commit=name * 40)) for name in "ab")
    small = planted.run(repo, "aaaaaaaaaaaa", own, created_s=1.0)
    planted.run(repo, "bbbbbbbbbbbb", own, created_s=2.0, spec=LaunchSpec(command=("large.py",)))
    planted.run(repo, "cccccccccccc", other, created_s=3.0)
    planned = msgspec.structs.replace(small, id="dddddddddddd", created_s=4.0)
    for letter in "abc":
        planted.begin(repo, letter * 12)
        run_index.write(repo, runs.load(repo, letter * 12), begun=1)
    assert needs.find(repo, planned).run == small.id
    assert needs.find(repo).run == "cccccccccccc"
    new = msgspec.structs.replace(planned, spec=LaunchSpec(command=("new.py",), nproc=4))
    found = needs.find(repo, new, nodes=2)
    assert (found.run, found.files, found.ranks, found.nodes) == (None, 1, 4, 2)


def test_the_cache_needs_no_more_than_its_limit(tmp_path: Path) -> None:
    machine = node.Machine(
        repo=Repository.create(LocalStore(tmp_path / "store", durable=False)), home=tmp_path, work_root=tmp_path,
        store_dir=None, cache_dir=tmp_path / "cache", cache_limit_bytes=10, environment=os.environ,
    )  # fmt: skip
    sizes = {place.use: place.size_bytes for place in machine.places(needs.Needs(checkpoint_bytes=100, files_bytes=5))}
    assert sizes == {"work and outputs": 5, "copies of the store": 10, "logs": 0}
