"""The templates' files: shared code is one file, and repeated text is equal."""

import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from m5ws.config import reader

ROOT = Path(__file__).parents[2]
NAMES = ("gpt-fsdp", "gpt-deepspeed")


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_is_valid_and_names_the_template(name: str) -> None:
    settings = reader.read(ROOT / "templates" / name / "m5ws.toml")
    assert settings.name == name
    assert settings.run.nproc == 2


def test_shared_template_files_are_links_to_one_file() -> None:
    for shared in (path for path in (ROOT / "templates" / "gpt").iterdir() if path.is_file()):
        for name in NAMES:
            link = ROOT / "templates" / name / shared.name
            assert link.is_symlink() and not link.readlink().is_absolute()
            assert link.resolve() == shared


def test_ignore_rules_are_equal_in_all_templates() -> None:
    # Not a link: git does not follow links for its own files.
    rules = [(ROOT / "templates" / name / ".gitignore").read_text() for name in NAMES]
    assert rules[0] == rules[1]
    assert not any((ROOT / "templates" / name / ".gitignore").is_symlink() for name in NAMES)


def test_templates_declare_the_versions_that_m5ws_is_tested_with() -> None:
    for name in NAMES:
        assert (ROOT / "templates" / name / "constraints.txt").resolve() == ROOT / "constraints.txt"


def test_template_configs_differ_only_in_the_zero_stage() -> None:
    fsdp, zero = (YAML(typ="safe").load(ROOT / "templates" / name / "config.yaml") for name in NAMES)
    assert zero.pop("zero_stage") == 2
    assert fsdp == zero


def test_every_dependency_has_an_exact_version_that_is_in_its_range() -> None:
    from packaging.requirements import Requirement

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    versions = dict(line.split("==") for line in lines)
    assert len(versions) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for text in [*project["dependencies"], *(text for extra in extras for text in extra)]:
        wanted = Requirement(text)
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        assert name == "m5ws" or wanted.specifier.contains(versions[name]), text
