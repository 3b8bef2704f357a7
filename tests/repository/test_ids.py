"""Ids, prefixes and names of runs, as users type them."""

import pytest

from m5ws.errors import AmbiguousId, NotFound
from m5ws.records.removal import Removal
from m5ws.repository import removals
from m5ws.repository.references import ids
from m5ws.repository.repository import Repository
from tests.support.records import planted

_BASE, _OTHER, _HEX = "7c1d00000001", "7c1d00000002", "ba5e00000003"


@pytest.fixture
def named(repo: Repository) -> Repository:
    """A store with runs whose names are Base line, base, and none."""
    planted.run(repo, _BASE, name="Base line", created_s=1.0)
    planted.run(repo, _OTHER, name="base", created_s=2.0)
    planted.run(repo, _HEX, created_s=3.0)
    return repo


@pytest.mark.parametrize(
    ("text", "run"),
    [(_BASE, _BASE), ("7c1d00000002", _OTHER), ("Base line", _BASE), (" base LINE ", _BASE), ("base", _OTHER)],
)
def test_a_run_is_found_by_its_id_prefix_or_name(named: Repository, text: str, run: str) -> None:
    assert ids.resolve(named, text) == ids.resolve(named, text, ("run",)) == ("run", run)


def test_a_prefix_of_an_id_comes_before_a_name(named: Repository) -> None:
    planted.run(named, "c0de00000004", name="ba5e", created_s=4.0)
    assert ids.resolve(named, "ba5e") == ("run", _HEX)


def test_a_part_of_a_name_or_another_kind_of_record_is_not_found(named: Repository) -> None:
    for text, kinds in (("Base", ("snapshot",)), ("line", ("run",)), ("", ("run",))):
        with pytest.raises(NotFound):
            ids.resolve(named, text, kinds)  # type: ignore[arg-type]


def test_a_name_of_two_runs_is_ambiguous_until_one_run_is_removed(named: Repository) -> None:
    planted.run(named, "c0de00000004", name="base", created_s=4.0)
    with pytest.raises(AmbiguousId, match=f"the name of 2 runs, here the newest first: run c0de00000004, run {_OTHER}"):
        ids.resolve(named, "base")
    removals.publish(named, Removal(run="c0de00000004", created_s=5.0))
    assert ids.resolve(named, "base") == ("run", _OTHER)


def test_a_name_resolves_to_the_original_and_not_to_its_replays(named: Repository) -> None:
    planted.run(named, "c0de00000004", name="base", reproduces=_OTHER, purpose="reproduce", created_s=4.0)
    assert ids.resolve(named, "base") == ("run", _OTHER)
