"""The exact versions in constraints.txt, which one command installs on a fresh machine."""

import re
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.paths import ROOT

_PINNED = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


_INSTALLED = {each.name: each for each in metadata.distributions() if each.version == _PINNED.get(each.name)}


@pytest.mark.parametrize("name", sorted(_INSTALLED))
def test_a_version_can_be_installed_with_every_python_that_m5ws_allows(name: str) -> None:
    """Such as 3.11.2, Python of Debian 12: a distribution may need a later Python."""
    (needed, *_) = _INSTALLED[name].metadata.get_all("Requires-Python") or [""]
    assert SpecifierSet(needed).contains("3.11.0"), needed
