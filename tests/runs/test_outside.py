"""Places outside of the work directory that a command names, and that an attempt changed."""

import os
import time
from pathlib import Path

import pytest

from m5ws.errors import UsageError
from m5ws.records.ledger import Notice
from m5ws.records.run import LaunchSpec
from m5ws.runs.outputs import outside
from tests.support.workspace.checkouts import write


def _changed(tmp_path: Path, *arguments: str, begun_ns: int = 0) -> list[str]:
    """Return the places of the notices. W is a work directory, and ROOT the folder around it."""
    root = os.path.realpath(tmp_path)
    write(tmp_path, {"w/out/x.pt": "", "results/a/x.pt": "", "one.pt": "", "texts/a.json": "{}"})
    (tmp_path / "empty" / "deep").mkdir(parents=True, exist_ok=True)
    words = [argument.replace("ROOT", root) for argument in arguments]
    found = outside.notices(LaunchSpec(command=("train.py", *words)), tmp_path / "w", begun_ns)
    assert all(kind == outside.OUTSIDE for kind, _ in found)
    return [message.rpartition(" ")[2].replace(root, "ROOT") for _, message in found]


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (("--out", "ROOT/results"), ["ROOT/results"]),
        (("--out=ROOT/results/", "ROOT/results"), ["ROOT/results"]),
        (("dir=ROOT/results/a",), ["ROOT/results/a"]),
        (("--save", "ROOT/one.pt"), ["ROOT/one.pt"]),
        (("../results", "out/../../one.pt"), ["ROOT/results", "ROOT/one.pt"]),
        (("out", "--out=ROOT/w/out", "ROOT/w", "ROOT", "..", "/", "results", "--lr", "1", "", "~nobody"), []),
        (("-oROOT/results", "-l/", "-x"), ["ROOT/results"]),
        (("ROOT/absent", "ROOT/empty", "ROOT/texts", "a\0/b"), []),
    ],
)
def test_places_with_files_are_noted(tmp_path: Path, words: tuple[str, ...], places: list[str]) -> None:
    assert _changed(tmp_path, *words) == places


def test_places_in_variables_and_in_files_that_the_command_names_are_noted(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    config = f"model:\n  output_dir: {root}/named\n"
    write(tmp_path, {"w/a.yaml": config, "named/x.pt": "", "variable/x.pt": "", "other/x.pt": ""})
    launch = LaunchSpec(command=("train.py", "a.yaml", "none.json"), environment={"OUT": f"{root}/variable"})
    places = [message.rpartition("/")[2] for _, message in outside.notices(launch, tmp_path / "w", 0)]
    assert places == ["named", "variable"]


def test_files_from_before_the_start_are_not_noted(tmp_path: Path) -> None:
    assert _changed(tmp_path, "ROOT/results", begun_ns=time.time_ns() + 10**9) == []


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _changed(tmp_path, "~/results") == ["ROOT/results"]


def test_a_replay_that_would_overwrite_them_is_refused(tmp_path: Path) -> None:
    others = [Notice(kind="limit", message="x")]
    outside.refuse_overwriting("aaaa", others)
    write(tmp_path, {"results/x.pt": ""})
    found = outside.notices(LaunchSpec(command=("x.py", str(tmp_path / "results"))), tmp_path / "w", 0)
    noted = [Notice(kind=kind, message=message) for kind, message in found]
    with pytest.raises(UsageError) as raised:
        outside.refuse_overwriting("aaaa", [*others, *noted, *noted])
    assert str(raised.value).count(str(tmp_path / "results")) == 1
