"""docs/promises.md names tests that are there, and the commands that run them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COMMANDS = {"services": "make test-services", "long": "make test-services", "soak": "make soak"}


def _command(path: str, name: str) -> str:
    """Return the command that runs a test, by its marks and its module's."""
    tree = ast.parse((ROOT / path).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    ours = [node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    marks = {ast.unparse(mark).removeprefix("pytest.mark.") for mark in [*found.decorator_list, *ours]}
    return next((command for mark, command in _COMMANDS.items() if mark in marks), "make test")


def test_each_promise_names_existing_tests_and_their_commands() -> None:
    rows = [line for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == 10
    for row in rows:
        *_, shown, commands, _ = row.split("|")
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        assert named, row
        assert set(re.findall(r"`([\w -]+)`", commands)) == {_command(*one) for one in named}, (commands, named)
