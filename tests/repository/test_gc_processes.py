"""gc in its own processes, beside eight processes that snapshot overlapping trees, and killed at random moments."""

import subprocess
import sys
from pathlib import Path

import pytest

from m5ws.records.gc import RetentionRules
from m5ws.records.store import Format
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.faults.kills import Kills, Scale
from tests.support.paths import ROOT
from tests.support.ranks.warm import Warm

_SCRIPT = Path(__file__).parent / "scripts" / "gc_process.py"
_ROOT = Path(__file__).parents[2]
_ROUND = 25
_FORMAT = Format(chunk_bytes=4096, file_chunk_bytes=4096, pack_bytes=2048, small_bytes=1024)


def _start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, str(_SCRIPT), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT, env={"PYTHONPATH": str(ROOT)}
    )


def _ends_well(process: "subprocess.Popen[str]") -> list[str]:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out.splitlines()


def _collect_all(repo: Repository, home: Path) -> None:
    with execute.lock_gc(home) as holder:
        while (due := execute.due(repo, 0.0)) is not None:
            execute.execute(repo, due.plan, holder, grace_s=0.0)
        while (plan := gc.plan(repo, RetentionRules(), 0.0).id) is not None:
            execute.execute(repo, plan, holder, grace_s=0.0)


def _beside_writers(folder: Path, snapshots_each: int, rounds: int) -> None:
    repo = Repository.create(LocalStore(folder / "store"), _FORMAT)
    collectors = [_start("collect", folder / "store", folder / f"gc-{number}", rounds) for number in range(2)]
    writers = [_start("write", folder / "store", folder / f"w{number}", number, snapshots_each) for number in range(8)]
    published = {line for process in writers for line in _ends_well(process)}
    for process in collectors:
        _ends_well(process)
    assert published == set(snapshots.ids(repo))
    report = fsck.check(repo)
    assert report.clean, report.damage
    _collect_all(repo, folder / "gc-0")
    report = fsck.check(repo)
    assert report.clean and report.unreachable == 0


_SOAK = (pytest.mark.soak, pytest.mark.timeout(7200))


@pytest.mark.parametrize(("times", "each", "rounds"), [(1, 6, 12), pytest.param(20, 60, 200, marks=_SOAK)])
def test_gc_beside_eight_snapshot_processes_loses_no_object(tmp_path: Path, times: int, each: int, rounds: int) -> None:
    for number in range(times):
        _beside_writers(tmp_path / str(number), each, rounds)


def _killed(folder: Path, scale: Scale) -> None:
    """Kill gc at random moments. The store is undamaged each time, and in the end the repeated command succeeds."""
    store = folder / "store"
    published = set(_ends_well(_start("write", store, folder / "first", 0, 4)))
    repo = Repository.open(LocalStore(store))
    kills = Kills("gc", "directory", scale.seed())
    with Warm(_SCRIPT) as warm:
        while kills.kills < scale.kills:
            _leave_garbage(repo, kills)
            kills.usual(warm.run("collect", store, folder / "gc", 1))
            limit = min(scale.kills, kills.kills + _ROUND)
            while kills.kills < limit:
                _leave_garbage(repo, kills)
                kills.count(warm.run("collect", store, folder / "gc", 1, moment_s=kills.moment_s()))
                report = fsck.check(repo)
                assert report.clean, report.damage
                # An error of m5ws is printed after a #.
                assert "#" not in warm.run("collect", store, folder / "gc", 1).said
            _collect_all(repo, folder / "gc")
            report = fsck.check(repo, read_data=True)
            assert report.clean and report.unreachable == 0
            assert set(snapshots.ids(repo)) == published
            kills.report(write=scale.soak)


def _leave_garbage(repo: Repository, kills: Kills) -> None:
    for _ in range(40):
        repo.objects.put(kills.draw.randbytes(16))


@pytest.mark.parametrize("scale", [Scale(12), pytest.param(Scale(500, soak=True), marks=_SOAK)])
def test_gc_killed_at_random_moments_loses_no_object(tmp_path: Path, scale: Scale) -> None:
    _killed(tmp_path, scale)
