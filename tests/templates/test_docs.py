"""Pages link to existing files, and name only existing commands."""

import re
from pathlib import Path

import pytest

from m5ws import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_of_a_page_lead_to_existing_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert not [target for target in targets if "://" not in target and not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_on_a_page_exist(page: Path) -> None:
    typed = re.findall(r"(?:^    (?:\$ )?|`)m5ws (?:-C \S+ )?([a-z]+)\b", page.read_text(), re.MULTILINE)
    assert set(typed) <= set(cli.COMMANDS)


def test_every_how_to_is_listed() -> None:
    folder = ROOT / "docs" / "how-to"
    listed = (folder / "README.md").read_text()
    assert all(f"]({page.name})" in listed for page in folder.glob("*.md") if page.name != "README.md")
