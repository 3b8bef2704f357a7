"""A world with a hostile store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.hostile import Commands, World


@pytest.fixture(scope="module")
def commands() -> Iterator[list[Commands]]:
    """The processes of a module. A new process is started if a test ended the last process."""
    held: list[Commands] = []
    yield held
    for one in held:
        one.close()


@pytest.fixture
def world(commands: list[Commands], tmp_path: Path) -> World:
    if not commands or not commands[-1].alive:
        commands.append(Commands())
    return World(tmp_path, commands[-1])
