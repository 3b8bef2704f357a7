"""Fixtures of the flows: ranks are forks, except in tests that start m5ws as a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ranks.base_runs import BaseRuns
from tests.support.ranks.forks import ForkParents
from tests.support.workspace import command_line


@pytest.fixture(scope="module", autouse=True)
def _forked_ranks(fork_parents: ForkParents) -> Iterator[None]:
    with command_line.forked_ranks(fork_parents):
        yield


@pytest.fixture(scope="session")
def base_runs(session_directory: Path) -> BaseRuns:
    return BaseRuns(session_directory / "base-runs")
