"""A resume after each of many steps equals uninterrupted training: FSDP and ZeRO with offload, 3 ranks, two betas."""

import json
import random
import time
from pathlib import Path

import msgspec
import pytest

from m5ws.records import codec
from m5ws.records.launch import Saving
from m5ws.repository.repository import Repository
from tests.support.campaigns import soak_page
from tests.support.ranks import forks
from tests.support.ranks.orders import orders
from tests.support.records import planted

_SCRIPT = Path(__file__).parent / "scripts" / "every_resume.py"
_ROOT = Path(__file__).parents[2]
_RANKS = 3
_RUN = "0" * 12
_HEADER = (
    "| training | betas | ranks | seed | resumed after | of steps | compared, on each rank | not equal | seconds |",
    "|---|---|---|---|---|---|---|---|---|",
)


class _Scale(msgspec.Struct, frozen=True):
    """The numbers of steps after which to resume, and the number of all steps."""

    resumes: int
    steps: int
    soak: bool = False

    def seed(self) -> int:
        return random.SystemRandom().randrange(10**6) if self.soak else 3


_SOAK = _Scale(200, 200, soak=True)
_LONG = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]
_CASES = [
    ("fsdp", "0.999", _Scale(3, 8)),
    *(
        pytest.param(kind, beta, _SOAK, marks=_LONG)
        for kind in ("fsdp", "zero2", "zero3")
        for beta in ("0.999", "0.95")
    ),
]


@pytest.mark.parametrize(("kind", "beta", "scale"), _CASES)
def test_a_resume_after_any_step_equals_uninterrupted_training(
    repo: Repository, fork_parents: forks.ForkParents, tmp_path: Path, kind: str, beta: str, scale: _Scale
) -> None:
    began_s, seed = time.monotonic(), scale.seed()
    said = orders(tmp_path, store=repo.store.url, run=_RUN, saving=Saving(asynchronous=False))
    (tmp_path / "orders").write_bytes(codec.encode(said))
    planted.begin(repo, _RUN)
    arguments = (kind, beta, repo.store.url, tmp_path, scale.steps, scale.resumes, seed)
    status, log = forks.run(
        fork_parents,
        *(str(_SCRIPT), *map(str, arguments)),
        directory=tmp_path,
        ranks=_RANKS,
        deepspeed=kind != "fsdp",
        timeout_s=4 * 3600.0,
    )
    assert status == 0, log[-9000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(_RANKS)]
    differ = [one for rank in ranks for one in rank["differ"]]
    counts = (scale.resumes, scale.steps, ranks[0]["compared"], len(differ))
    cells = (kind, f"0.9, {beta}", _RANKS, seed, *counts, f"{time.monotonic() - began_s:,.0f}")
    print(row := "| " + " | ".join(map(str, cells)) + " |")
    if scale.soak:
        soak_page.put("resumes", _HEADER, row, cells=2)
    assert all(len(rank["after"]) == scale.resumes for rank in ranks)
    assert differ == []
