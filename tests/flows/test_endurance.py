"""Thousands of checkpoints in one run, with retention and gc: no process holds more and more."""

import time
from pathlib import Path

import msgspec
import pytest

from m5ws.repository.references import checkpoints, runs
from tests.support.campaigns import soak_page
from tests.support.ranks.footprint import Footprints, Held
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.long

_SAMPLE_S = 0.2
_GC_S = 2.0
_KEPT = 3
# Bounds of the growth from the run's second quarter to its last: below a leak of 10 kB, or one file, a checkpoint.
_MEMORY_BYTES = 12 * 2**20
_DESCRIPTORS = 8
_THREADS = 2
_HEADER = (
    (
        "| checkpoints | process | memory, 25–50 % of the run | 75–100 % | descriptors / threads, 25–50 % | 75–100 % |"
        " gc calls | checkpoints retired | objects in the store, most | seconds |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|",
)


class _Scale(msgspec.Struct, frozen=True):
    checkpoints: int
    soak: bool = False


class _Seen(msgspec.Struct):
    """Observations of the store: the number of gc calls, and the objects after each."""

    calls: int = 0
    retired: int = 0
    objects: list[int] = []


def _made(workspace: Workspace) -> int:
    """Return the number of the run's checkpoints. It is the step of the last checkpoint, since each step has one."""
    paths = (workspace.root / ".m5ws" / "store" / "runs").glob("*/checkpoints/*")
    return max((checkpoints.step_of(path.name) for path in paths), default=0)


def _collect(workspace: Workspace, seen: _Seen) -> None:
    """Call gc like a timer: it executes the plan that is due, or makes one."""
    done = workspace.json("gc", "--older-than", "1s", "--grace", "1s")
    seen.calls += 1
    if done["state"] == "done":
        seen.retired += done["deleted"]["checkpoints"]
        seen.objects.append(sum(1 for _ in (workspace.root / ".m5ws" / "store" / "objects").glob("*/*")))


def _watched(workspace: Workspace, seen: _Seen) -> Footprints:
    """Run to the end, with a checkpoint after each step, and return the memory and files of the processes."""
    process = workspace.start("run", "--no-progress", "--checkpoint-every", "1")
    prints, next_s = Footprints(process.pid), time.monotonic() + _GC_S
    while process.poll() is None:
        if made := _made(workspace):
            prints.sample(made)
        if time.monotonic() >= next_s:
            _collect(workspace, seen)
            next_s = time.monotonic() + _GC_S
        time.sleep(_SAMPLE_S)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return prints


_SCALES = [
    pytest.param(_Scale(120), marks=pytest.mark.soak),
    pytest.param(_Scale(2000, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
]


@pytest.mark.parametrize("scale", _SCALES)
def test_memory_descriptors_and_threads_of_a_run_do_not_grow_with_checkpoints(tmp_path: Path, scale: _Scale) -> None:
    began_s = time.monotonic()
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("config.yaml", "steps: 10", f"steps: {scale.checkpoints}")
    workspace.edit("config.yaml", "hidden: 128", "hidden: 32")
    with open(workspace.root / "m5ws.toml", "a", encoding="utf-8") as settings:
        settings.write(f"\n[retention]\nlast = {_KEPT}\n")
    seen = _Seen()
    prints = _watched(workspace, seen)
    seconds = time.monotonic() - began_s
    for role in ("supervisor", "launcher", "rank"):
        early, late = (prints.window(role, *_part(scale.checkpoints, quarter)) for quarter in (2, 4))
        print(row := _row(scale, role, (early, late), seen, seconds))
        if scale.soak:
            soak_page.put("endurance", _HEADER, row, cells=2)
        assert late.memory_bytes - early.memory_bytes < _MEMORY_BYTES, row
        assert late.descriptors - early.descriptors < _DESCRIPTORS, row
        assert late.threads - early.threads <= _THREADS, row
    _judge(workspace, scale.checkpoints, seen)


def _part(count: int, quarter: int) -> tuple[int, int]:
    return count * (quarter - 1) // 4, count * quarter // 4


def _row(scale: _Scale, role: str, held: tuple[Held, Held], seen: _Seen, seconds: float) -> str:
    memory = [f"{process.memory_bytes / 2**20:.1f} MiB" for process in held]
    counts = [f"{process.descriptors} / {process.threads}" for process in held]
    store = (seen.calls, f"{seen.retired:,}", max(seen.objects, default="-"), f"{seconds:,.0f}")
    return "| " + " | ".join(map(str, (f"{scale.checkpoints:,}", role, *memory, *counts, *store))) + " |"


def _judge(workspace: Workspace, made: int, seen: _Seen) -> None:
    """Check that gc kept up, that the remaining store is sound, and that the run has exactly its last checkpoints."""
    for _ in range(6):
        _collect(workspace, seen)
        time.sleep(1.0)
    (run,) = runs.ids(workspace.repo)
    assert [checkpoints.step_of(name) for name in checkpoints.valid(workspace.repo, run)] == list(range(made + 1))[
        -_KEPT:
    ]
    assert seen.retired == made - _KEPT
    history = workspace.history(run)
    assert len(history.contents) == made and not [notice for notice in history.notices if notice.kind == "save-failed"]
    assert workspace.json("fsck", "--read-data")["damage"] == []
