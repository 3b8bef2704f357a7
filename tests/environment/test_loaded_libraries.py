"""A loaded library is compared with the distribution that installed its file, whatever the local part of its version.

The distributions are real files in a temporary folder, which importlib.metadata reads.
"""

import importlib
import itertools
import json
from pathlib import Path

import pytest

from m5ws.environment import drift
from m5ws.environment.observe.machine import Machine
from m5ws.records.environment import Observed
from tests.support.workspace.checkouts import write

LOCALS = ("", "+cpu", "+cu128", "+cu130", "+50eac811a6.nv25.09")
VERSIONS = ("2.13.0", "2.14.1", "2.9.0a0")
LIBRARY = "torch/lib/libtorch_cpu.so"


def install(site: Path, version: str, *, listed: bool = True, files: bool = True) -> Path:
    """Write a distribution of torch as pip does, and return the path of its library."""
    info = f"torch-{version}.dist-info"
    write(site, {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"})
    if listed:
        listing = f"{LIBRARY},sha256=abc,3" if files else "torch.pth,,"
        write(site, {f"{info}/RECORD": f"{info}/METADATA,,\n{listing}\n"})
    if files:
        write(site, {LIBRARY: "elf"})
    return site / LIBRARY


def observe(site: Path, monkeypatch: pytest.MonkeyPatch, reported: str, file: Path) -> Observed:
    """Return the environment of a process that finds `site` first, and has loaded a torch from `file`."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        return Machine(root=site, read_torch=lambda: {"torch": reported, "loaded.torch": str(file)}).observe({})


def conflict(observed: Observed) -> list[tuple[str | None, str | None]]:
    return [(change.old, change.new) for change in drift.conflicts(observed)]


@pytest.mark.parametrize("version", VERSIONS)
def test_only_another_file_or_another_public_version_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    copy = tmp_path / "copy of torch" / LIBRARY
    write(tmp_path, {f"copy of torch/{LIBRARY}": "elf"})
    for number, local in enumerate(LOCALS):
        site = tmp_path / f"site {number}"
        own = install(site, version + local)
        seen = observe(site, monkeypatch, version, own)
        assert seen.facts["owner.torch"] == "torch"
        unowned = observe(site, monkeypatch, version, copy)
        assert unowned.facts["owner.torch"] is None
        for public, loaded_local in itertools.product(VERSIONS, LOCALS):
            loaded = public + loaded_local
            facts = {**seen.facts, "torch": loaded}
            expected = [] if public == version else [(version + local, loaded)]
            assert conflict(Observed(facts=facts, distributions=seen.distributions)) == expected
            facts = {**unowned.facts, "torch": loaded}
            expected = [(version + local, f"{loaded} in {copy}")]
            assert conflict(Observed(facts=facts, distributions=unowned.distributions)) == expected


@pytest.mark.parametrize("kind", ["linked by the installer", "editable", "editable, built in place", "without a list"])
def test_a_file_belongs_to_its_distribution_however_it_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    site, source = tmp_path / "site", tmp_path / "source of torch"
    editable = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    file = install(site, "2.14.1", listed=kind != "without a list", files=kind != "editable")
    if kind == "linked by the installer":
        file = file.rename(tmp_path / "libtorch_cpu.so")
        (site / LIBRARY).symlink_to(file)
    if kind.startswith("editable"):
        write(site, {"torch-2.14.1.dist-info/direct_url.json": editable})
    if kind == "editable":
        write(source, {LIBRARY: "elf"})
        file = source / LIBRARY
    observed = observe(site, monkeypatch, "2.14.1+gitabc", file)
    assert (observed.facts["owner.torch"], conflict(observed)) == ("torch", [])
    assert conflict(observe(site, monkeypatch, "2.14.1", tmp_path / "elsewhere" / LIBRARY)) != []


def test_a_library_with_two_loaded_copies_has_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, copy = install(tmp_path / "my site", "2.14.1"), tmp_path / "a copy" / "libtorch_cpu.so"
    both = Path(f"{own} {copy}")
    assert conflict(observe(tmp_path / "my site", monkeypatch, "2.14.1", both)) == [("2.14.1", f"2.14.1 in {both}")]
    twice = Path(f"{own} {own}")
    assert conflict(observe(tmp_path / "my site", monkeypatch, "2.14.1", twice)) == []
