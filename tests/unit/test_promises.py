"""docs/promises.md names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_promise_names_a_test_that_exists() -> None:
    rows = [line for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == 9
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, test in named:
            assert f"def {test}(" in (ROOT / path).read_text(), (path, test)
