"""Packages of conda, by the records that conda writes. tests/services/test_package_tools.py has a real environment."""

import sys
from pathlib import Path

import pytest

from m5ws.environment.observe import conda
from tests.support.workspace.checkouts import write

_URL = "https://ada:hunter2@conda.example.org/t/hunter2/team/linux-64/libmath-1.2-h1.conda"
_PLAIN = "https://conda.example.org/team/linux-64/libmath-1.2-h1.conda"


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (f'{{"name": "libmath", "fn": "l", "url": "{_URL}", "md5": "aa", "sha256": "bb"}}', f"{_PLAIN}#sha256:bb"),
        (f'{{"name": "libmath", "fn": "l", "url": "{_URL}", "md5": "aa", "files": []}}', f"{_PLAIN}#aa"),
        (f'{{"name": "libmath", "fn": "l", "url": "{_URL}"}}', _PLAIN),
        ('{"name": "libmath", "fn": "l.conda", "url": "<unknown>/linux-64/l.conda"}', "# no URL for: l.conda"),
        ('{"name": "libma', "# no URL for: libmath"),
        # pip replaced the distribution, and left the record of conda.
        (f'{{"name": "libmath", "fn": "l", "url": "{_URL}", "files": ["lib/a-1.dist-info/METADATA"]}}', _PLAIN),
    ],
)
def test_a_package_of_conda_is_its_line_of_an_explicit_list_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str, line: str
) -> None:
    write(tmp_path / "conda-meta", {"libmath.json": record, "history": ""})
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert conda.facts() == {"conda.libmath": line}
