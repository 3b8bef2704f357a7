"""Records at the end of an attempt: they are found however long a process lived on after its script."""

from pathlib import Path

import pytest

from m5ws.records.failure import Failure
from m5ws.records.ledger import NODE, Notice, RankEnded
from m5ws.repository.repository import Repository
from m5ws.supervision import diagnosis
from tests.support.records import planted


@pytest.mark.parametrize("later", [0, 2, 9])
def test_the_failure_of_a_rank_is_found_before_any_number_of_later_records(
    repo: Repository, tmp_path: Path, later: int
) -> None:
    run = planted.run(repo, "7c1d00000001")
    planted.begin(repo, run.id)
    planted.append(repo, run.id, 1, "1", RankEnded(rank=1, failure=Failure(type="ValueError", text="no data")))
    for _ in range(later):
        planted.append(repo, run.id, 1, NODE, Notice(kind="limit", message="a part is not recorded"))
    assert set(diagnosis.collect(repo, run.id, 1, tmp_path).recorded.failures) == {1}
