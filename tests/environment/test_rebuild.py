"""Recipes of recorded environments: requirements for pip, and refusals."""

from pathlib import Path

import pytest

from m5ws.environment.rebuild import rebuild
from m5ws.errors import UsageError
from m5ws.records.environment import Declared, Observed, Origin
from m5ws.records.recipe import Requirement
from m5ws.repository.repository import Repository
from tests.support.records import planted

_IMAGE = "registry.example.org/train@sha256:" + "0123456789abcdef" * 4
A, B = "a" * 64, "b" * 64
_VERSIONS = {
    "m5ws": "0.1.0",
    "torch": "2.13.0+cpu",
    "green-eggs": "1.2",
    "cloned": "1.0",
    "fetched": "2.0",
    "mine": "3",
}
_ORIGINS = {
    "cloned": Origin(kind="vcs", url="https://example.org/c.git", vcs="git", commit="c" * 40, subdirectory="py/c"),
    "fetched": Origin(kind="archive", url="https://example.org/f.zip", hash=B),
    "mine": Origin(kind="editable", url="libs/mine", inside=True),
}


def _run(repo: Repository, folder: Path, observed: Observed, declared: Declared | None = None) -> str:
    code = planted.tree(repo, folder, {"libs/mine/setup.py": ""})
    pinned = planted.publish(repo, planted.snapshot(code, declared=declared or Declared()))
    planted.run(repo, "7c1d00000001", pinned)
    planted.begin(repo, "7c1d00000001", observed=repo.objects.put_record(observed))
    return "7c1d00000001"


def test_a_recipe_requests_each_distribution_from_its_recorded_origin(repo: Repository, tmp_path: Path) -> None:
    observed = Observed(facts={"python": "3.11.7"}, distributions=_VERSIONS, origins=_ORIGINS)
    made = rebuild.recipe(repo, _run(repo, tmp_path / "w", observed))
    assert made.python == "3.11.7"
    assert [requirement.line for requirement in made.requirements] == [
        f"cloned @ git+https://example.org/c.git@{'c' * 40}#subdirectory=py/c",
        f"fetched @ https://example.org/f.zip#sha256={B}",
        "green-eggs===1.2",
        "--editable ./libs/mine",
        "torch===2.13.0+cpu",
    ]
    rebuild.write_code(repo, made, tmp_path / "code")
    assert (tmp_path / "code" / "libs" / "mine" / "setup.py").is_file()


def test_all_distributions_that_cannot_be_reinstalled_are_named_at_once(repo: Repository, tmp_path: Path) -> None:
    origins = {
        "torch": Origin(kind="conda"),
        "cloned": Origin(kind="directory", url="file:///home/ada/cloned"),
        "fetched": Origin(kind="archive", url="file:///tmp/fetched-2.0-py3-none-any.whl", hash=A),
        "mine": Origin(kind="editable", url="ignored/mine", inside=True),
        "signed": Origin(kind="archive", url="https://example.org/signed-1.0-py3-none-any.whl?token=***"),
    }
    versions = {**_VERSIONS, "signed": "1.0"}
    observed = Observed(facts={"python": "3.11.7"}, distributions=versions, origins=origins)
    with pytest.raises(rebuild.NotRebuildable) as raised:
        rebuild.recipe(repo, _run(repo, tmp_path / "w", observed))
    refused = [line.split(":")[0].strip() for line in str(raised.value).splitlines()[1:]]
    assert refused == ["cloned 1.0", "fetched 2.0", "mine 3", "signed 1.0", "torch 2.13.0+cpu"] and raised.value.hint


@pytest.mark.parametrize(
    ("distributions", "origins"),
    [
        ({"a": "1\n--index-url=http://there"}, {}),
        ({"a --pre": "1"}, {}),
        ({"-e": "1"}, {}),
        ({"a": "1"}, {"a": Origin(kind="archive", url="https://x/y\n--pre")}),
        ({"a": "1"}, {"a": Origin(kind="vcs", vcs="git", url="https://x/y", commit="a --pre")}),
        ({"a": "1"}, {"a": Origin(kind="archive", url="-r /etc/passwd")}),
        ({"a": "1"}, {"a": Origin(kind="archive", url="https://x/${AWS_SECRET_ACCESS_KEY}")}),
        ({"a": "1"}, {"a": Origin(kind="archive", url="https://x/y\\")}),
        ({"a": "1"}, {"a": Origin(kind="editable", url="../../outside", inside=True)}),
    ],
)
def test_recorded_names_and_versions_never_become_options_of_pip(
    repo: Repository, tmp_path: Path, distributions: dict[str, str], origins: dict[str, Origin]
) -> None:
    observed = Observed(facts={"python": "3.11.7"}, distributions=distributions, origins=origins)
    with pytest.raises(rebuild.NotRebuildable):
        rebuild.recipe(repo, _run(repo, tmp_path / "w", observed))


def test_a_run_that_is_pinned_to_an_image_needs_no_rebuilt_environment(repo: Repository, tmp_path: Path) -> None:
    observed = Observed(facts={"python": "3.11.7"}, distributions=_VERSIONS)
    with pytest.raises(UsageError, match="container image") as raised:
        rebuild.recipe(repo, _run(repo, tmp_path / "w", observed, Declared(image=_IMAGE)))
    assert "m5ws starts the image" in raised.value.hint


def test_a_run_that_never_began_has_no_environment(repo: Repository, tmp_path: Path) -> None:
    code = planted.tree(repo, tmp_path / "w", {"a.py": ""})
    planted.run(repo, "7c1d00000002", planted.publish(repo, planted.snapshot(code)))
    with pytest.raises(UsageError, match=r"7c1d00000002.* environment"):
        rebuild.recipe(repo, "7c1d00000002")


@pytest.mark.parametrize(
    ("version", "exact"),
    [
        ("1.0", "==="),
        ("2.13.0+cu130", "==="),
        ("1.0rc1.post2.dev3", "==="),
        ("2024.01", "=="),
        ("1!2.0", "=="),
        ("1.0-final", "=="),
    ],
)
def test_a_version_with_several_spellings_is_compared_as_a_version(version: str, exact: str) -> None:
    assert Requirement(name="a", version=version).line == f"a{exact}{version}"
