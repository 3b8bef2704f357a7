"""The campaign finds nothing on a sound store, and each broken promise on an unsound store."""

from pathlib import Path

import pytest

from m5ws.store.local import LocalStore
from tests.support.campaigns.campaign_result import Result
from tests.support.campaigns.store_campaign import Campaign
from tests.support.stores.broken_store import BREAKS, BrokenStore

pytestmark = pytest.mark.soak


def test_a_sound_store_has_no_violations(tmp_path: Path) -> None:
    result = Campaign(lambda: LocalStore(tmp_path), operations=150, seed=1).run()
    assert result.violations == [] and result.failed == {}
    assert result.succeeded == 150 and len(result.by_operation) == 10, result.line()


@pytest.mark.parametrize("breaks", sorted(BREAKS))
def test_each_broken_promise_is_found(tmp_path: Path, breaks: str) -> None:
    store = BrokenStore(LocalStore(tmp_path), breaks)
    result = Campaign(lambda: store, operations=300, seed=1).run()
    assert BREAKS[breaks] in result.kinds(), result.line()


def test_only_unsigned_answers_count_as_misleading() -> None:
    result = Result(operations=3, seed=1, misleading=True)
    result.violated("said absent", "list", "k")
    assert result.misled == 1 and result.violations == []
    result.violated("said absent", "get", "k")
    result.violated("unclear error", "list", "KeyError")
    assert result.kinds() == {"said absent": 1, "unclear error": 1}
