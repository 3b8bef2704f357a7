"""Fencing: a rank of an earlier attempt that resumes late can publish nothing that any reader accepts."""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from m5ws.checkpoints import resolve
from m5ws.errors import UsageError
from m5ws.records.gc import RetentionRules
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import gc
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.store.interface import ObjectStore
from tests.support.campaigns import soak_page
from tests.support.faults.zombies import WAKES, Told, Tries

if TYPE_CHECKING:
    from tests.support.s3.s3_servers import S3Server

_HEADER = (
    (
        "| store | seed | zombies | woke after the attempt began | between look and write | as the attempt began |"
        " told that it is superseded | accepted | in time, no zombie | seconds |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|",
)


class _Scale(msgspec.Struct, frozen=True):
    zombies: int
    soak: bool = False


_SCALES = [_Scale(4), pytest.param(_Scale(1000, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]


@pytest.fixture(params=["directory", pytest.param("S3 (moto)", marks=pytest.mark.long)])
def where(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def opened(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    if where == "directory":
        return lambda: open_store(str(tmp_path / "store"))
    request.getfixturevalue("s3_environment")
    server: S3Server = request.getfixturevalue("s3_server")
    url = server.url(server.bucket(), region="eu-west-1")
    return lambda: open_store(url)


@pytest.mark.parametrize("scale", _SCALES)
def test_a_zombie_s_checkpoint_is_never_accepted(opened: Callable[[], ObjectStore], where: str, scale: _Scale) -> None:
    began_s = time.monotonic()
    seed = random.SystemRandom().randrange(10**6) if scale.soak else 7
    Repository.create(opened())
    tries, told = Tries(opened, seed), list[Told]()
    while sum(one.late for one in told) < scale.zombies:
        told.append(one := tries.one(WAKES[len(told) % len(WAKES)]))
        assert not one.accepted, one
        # Only who looked before the attempt began can think that it has published.
        assert one.refused or one.wakes != "after the attempt began"
    late = [one for one in told if one.late]
    # A fresh client sees the same, when all is over.
    _judge(Repository.open(opened()), tries.accepted)
    woke = Counter(one.wakes for one in late)
    assert len(woke) > 1
    refused, in_time = sum(one.refused for one in late), len(told) - len(late)
    counts = (len(late), *(woke[wakes] for wakes in WAKES), refused, sum(one.accepted for one in late), in_time)
    row = "| " + " | ".join(map(str, (where, seed, *counts, f"{time.monotonic() - began_s:,.0f}"))) + " |"
    print(row)
    if scale.soak:
        soak_page.put("zombies", _HEADER, row)


def _judge(repo: Repository, accepted: dict[str, list[str]]) -> None:
    """Check the view of people and gc: zombies' objects are listed apart, do not count, and are garbage."""
    late = 0
    for run, labels in accepted.items():
        assert checkpoints.valid(repo, run) == labels
        assert resolve.resolve(repo, f"{run}@2").name == checkpoints.name(2, 2)
        assert resolve.resolve(repo, run).name == checkpoints.name(3, 2)
        fenced = set(checkpoints.names(repo, run)) - set(labels)
        late += len(fenced)
        for name in fenced:
            with pytest.raises(UsageError, match=name):
                resolve.resolve(repo, f"{run}@{name}")
    assert late
    report = fsck.check(repo)
    assert report.clean, report.damage
    assert gc.plan(repo, RetentionRules(last=100), 0.0, dry_run=True).plan.checkpoints == late
