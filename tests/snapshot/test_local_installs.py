"""Distributions from outside the workspace: a snapshot names them unless they are allowed."""

import json
from pathlib import Path

import pytest

from m5ws.environment.observe import distributions
from m5ws.environment.observe.machine import Machine
from m5ws.records.environment import Origin
from m5ws.repository.repository import Repository
from m5ws.snapshot.local_installs import local
from tests.support.workspace import captures
from tests.support.workspace.checkouts import write

_IMAGE = "registry.example.org/train@sha256:" + "0123456789abcdef" * 4
_LOCAL = {
    "our-layers": Origin(kind="editable", url="file:///home/ada/our-layers"),
    "fast-attention": Origin(
        kind="archive", url="file:///tmp/fast_attention-1.0-cp311-linux_x86_64.whl", hash="0" * 64
    ),
    "in-here": Origin(kind="editable", url="libs/in-here", inside=True),
    "pinned": Origin(kind="vcs", url="https://example.org/pinned", vcs="git", commit="a" * 40),
    "from-conda": Origin(kind="conda"),
}


def test_installs_outside_the_workspace_are_named_in_a_single_warning(root: Path, repo: Repository) -> None:
    machine, lines = captures.Machine(), list[str]()
    machine.local = _LOCAL

    def named(allow_local: list[str], *, dry_run: bool = False) -> list[str]:
        settings = captures.make_settings(environment={"allow_local": allow_local})
        lines.clear()
        taken = captures.take(root, repo, settings, machine=machine, dry_run=dry_run, warn=lines.append)
        assert list(taken.warnings) == lines
        return [line.partition(" ")[0] for line in lines]

    assert named([], dry_run=True) == named([]) == ["our-layers", "fast-attention"]
    assert named([]) == []
    assert named(["our_layers"]) == ["fast-attention"]
    assert named(["our_layers", "fast-*"]) == []
    # Without the setting, an install that was allowed before is named again.
    assert named([]) == ["our-layers", "fast-attention"]


def test_an_allowed_name_matches_in_any_spelling() -> None:
    for written in ("Our_Layers", "our.layers", "our-*"):
        assert list(local(_LOCAL, [written])) == ["fast-attention"]


def _installed(site: Path, name: str, direct_url: object, installer: str = "pip") -> None:
    info = f"{name}-1.0.dist-info"
    write(
        site,
        {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            f"{info}/direct_url.json": json.dumps(direct_url),
            f"{info}/INSTALLER": f"{installer}\n",
        },
    )


def test_origins_of_installed_distributions_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, root = tmp_path / "site", tmp_path / "w"
    (root / "libs").mkdir(parents=True)
    folder = {"dir_info": {"editable": True}}
    _installed(site, "within", {"url": (root / "libs" / "within").as_uri(), **folder})
    _installed(site, "m5ws", {"url": (tmp_path / "m5ws").as_uri(), **folder})
    _installed(site, "copied", {"url": (tmp_path / "copied").as_uri(), "dir_info": {}})
    _installed(site, "feedstock", {"url": "file:///home/conda/feedstock_root", "dir_info": {}}, "conda")
    archive = {"archive_info": {"hash": f"sha256={'a' * 64}"}, "subdirectory": "python"}
    _installed(site, "fetched", {"url": "https://ada:secret@example.org/fetched.zip", **archive})
    commit = {"vcs": "git", "commit_id": "b" * 40, "requested_revision": "main"}
    _installed(site, "cloned", {"url": "https://example.org/cloned.git", "vcs_info": commit})
    _installed(site, "broken", {"url": 7})
    monkeypatch.setattr("sys.path", [str(site)])
    origins = distributions.origins(root)
    assert {name: str(origin) for name, origin in origins.items()} == {
        "within": "the workspace's libs/within",
        "copied": f"directory {(tmp_path / 'copied').as_uri()}",
        "feedstock": "conda",
        "fetched": f"archive https://example.org/fetched.zip {'a' * 64}",
        "cloned": f"vcs https://example.org/cloned.git {'b' * 40}",
    }
    assert [name for name, origin in origins.items() if origin.local] == ["copied"]


def test_distributions_inside_the_pinned_image_have_no_recorded_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(tmp_path / "site", "copied", {"url": "file:///build/copied", "dir_info": {}})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    machine = Machine(root=tmp_path, base={})
    assert "copied" in machine.origins(None) and "copied" not in machine.origins(_IMAGE)
