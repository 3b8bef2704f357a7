"""Fixtures that every part uses, and the loud account of what could not run."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from m5ws.repository import Repository
from m5ws.store.local import LocalStore

_LOUD: list[str] = []

# How long drawing takes says what else the machine does, and nothing of m5ws.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def repo(store: LocalStore) -> Repository:
    return Repository.create(store)


def loud_skip(reason: str) -> None:
    """Skip a test that lacks a server or program, and say so where nobody can miss it."""
    _LOUD.append(reason)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in dict.fromkeys(_LOUD):
        terminalreporter.write_line(f"NOT TESTED: {reason}", red=True, bold=True)
