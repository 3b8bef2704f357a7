"""`m5ws pin`: versions and the image of a run in m5ws.toml. Programs stand for container engines here."""

import json
import os
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment import drift
from m5ws.projects import pin
from m5ws.records.environment import Declared, Observed
from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

_A, _B, _C = (f"localhost/m5/train@sha256:{letter * 64}" for letter in "abc")
_FACTS: dict[str, str | None] = {
    "python": "3.11.7", "torch": "2.13.0+cu130", "torch.cuda": "13.0", "nccl": None, "cudnn": "91002",
    "nccl.installed": "2.28.9 (nvidia-nccl-cu13)", "efa.driver": None,
}  # fmt: skip
_WANTED = {"python": "3.11.7", "torch": "2.13.0", "cuda": "13.0", "cudnn": "91002", "nccl": "2.28.9"}
_TOML = "name = 'small' # n\r\n[mlflow]\r\nenabled = false\r\n"


def train(repo: Repository, facts: dict[str, str | None], run: str = "7c1d00000001", **ends: Any) -> str:
    """Store a run with one attempt that observed `facts`, and return its id."""
    planted.run(repo, run)
    observed = repo.objects.put_record(Observed(facts=facts, distributions={"numpy": "2.4.6"}))
    planted.begin(repo, run, observed=observed)
    if ends:
        planted.append(repo, run, 1, NODE, AttemptEnded(time_s=1.0, **ends))
    return run


FINISHED: dict[str, Any] = {"outcome": "finished", "exit_code": 0}


def section(place: Path) -> Any:
    return tomllib.loads((place / "m5ws.toml").read_text()).get("environment", {})


def test_a_run_is_pinned_and_every_other_line_stays(m5: M5, place: Path, home: Repository) -> None:
    (place / "m5ws.toml").write_bytes(_TOML.encode())
    run = train(home, _FACTS | {"container.image": _A}, **FINISHED)
    dry = m5("pin", run, "--dry-run")
    assert dry.status == 0 and (place / "m5ws.toml").read_bytes() == _TOML.encode()
    assert f'+image = "{_A}"' in dry.out.splitlines() and '+wanted.nccl = "2.28.9"' in dry.out.splitlines()
    written = m5("pin", run)
    assert (written.status, written.out, written.err) == (0, dry.out, "")
    assert (place / "m5ws.toml").read_bytes().startswith(_TOML.encode())
    assert section(place) == {"image": _A, "wanted": _WANTED}
    again = m5("pin", "--json", run)
    assert again.document["diff"] == [] and again.document["pins"]["image"] == _A
    assert "already" in m5("pin", run).err


def test_existing_pins_get_the_recorded_versions_and_unrecorded_pins_stay(
    m5: M5, place: Path, home: Repository
) -> None:
    text = f"[environment]\nimage = '{_B}'\nwanted = {{ efa = '2.13', nccl = '2.27', numpy = '2' }} # why\n"
    (place / "m5ws.toml").write_text(text)
    run = train(home, _FACTS, **FINISHED)
    done = m5("pin", run)
    assert section(place) == {"image": _B, "wanted": _WANTED | {"efa": "2.13", "numpy": "2.4.6"}}
    assert f"efa 2.13 stays: run {run} did not record efa" in done.err
    assert (place / "m5ws.toml").read_text().splitlines()[2].endswith("# why")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"container.image": "train:2"}, "no digest"),
        ({"container.image.unverified": _A, "container.image.source": "X, unverified"}, "its only source is X"),
    ],
)
def test_an_image_without_proof_is_not_pinned(
    m5: M5, place: Path, home: Repository, facts: dict[str, str | None], reason: str
) -> None:
    done = m5("pin", train(home, _FACTS | facts, **FINISHED))
    assert done.status == 0 and reason in done.err and "image" not in section(place)


def test_a_run_that_has_not_finished_is_pinned_with_a_note(m5: M5, place: Path, home: Repository) -> None:
    assert "not finished" in m5("pin", train(home, _FACTS)).err
    assert "failed" in m5("pin", train(home, _FACTS, "9a0400000002", outcome="failed", exit_code=1)).err
    assert section(place)["wanted"] == _WANTED


def test_a_run_without_recorded_versions_is_refused(m5: M5, place: Path, home: Repository) -> None:
    planted.run(home, "5e7700000003")
    before = (place / "m5ws.toml").read_bytes()
    for run in ("5e7700000003", train(home, {"kernel": "6"}, **FINISHED)):
        done = m5("pin", run)
        assert (done.status, done.out) == (3, "") and run in done.err
    assert m5("pin").status == 2
    assert (place / "m5ws.toml").read_bytes() == before


def test_the_mode_and_the_link_of_the_file_stay(m5: M5, place: Path, home: Repository) -> None:
    shared = place / "shared.toml"
    (place / "m5ws.toml").rename(shared)
    shared.chmod(0o640)
    (place / "m5ws.toml").symlink_to(shared.name)
    assert m5("pin", train(home, _FACTS, **FINISHED)).status == 0
    assert (place / "m5ws.toml").is_symlink() and shared.stat().st_mode & 0o777 == 0o640
    assert section(place)["wanted"] == _WANTED


_VALUES = st.none() | st.text(string.digits + "ab.+- ()", min_size=1, max_size=12).map(str.strip).filter(
    lambda text: text and text[0] not in "+- ()"
)
_NAMES = st.sampled_from(
    ("python", "torch", "torch.cuda", "cudnn", "nccl", "nccl.installed", "libfabric", "aws-ofi-nccl", "efa.driver",
     "gpu.driver", "numpy")
)  # fmt: skip


@given(st.dictionaries(_NAMES, _VALUES), st.sampled_from((None, _A, "train:2")))
def test_each_run_meets_its_own_pins(facts: dict[str, str | None], image: str | None) -> None:
    repo = Repository.create(MemoryStore())
    run = train(repo, facts | {"container.image": image}, **FINISHED)
    pins = pin.of_run(repo, run, {"numpy": "1"})
    observed = Observed(facts=facts | {"container.image": image}, distributions={"numpy": "2.4.6"})
    assert drift.unmet(Declared(image=pins.image, wanted=dict(pins.wanted)), observed) == ()
    known = {name for name in (*pin.NAMES, "numpy") if drift.version_of(name, observed)}
    assert set(pins.wanted) == known and pins.image == (image if image == _A else None)


# --- images --------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of Podman, and the file with the digests of its image."""
    folder, digests = tmp_path / "bin", tmp_path / "digests"
    folder.mkdir()
    (folder / "podman").write_text(f"#!/bin/sh\ncase $1 in image) exec cat {digests};; *) echo 4.3.1;; esac\n")
    (folder / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return digests


def test_a_tag_is_pinned_by_its_digest_and_a_moved_tag_is_reported(m5: M5, place: Path, engine: Path) -> None:
    engine.write_text(json.dumps([_B]))
    assert m5("pin", "--image", "localhost/m5/train:v2", "--dry-run").status == 0 and section(place) == {}
    first = m5("pin", "--image", "localhost/m5/train:v2")
    assert section(place) == {"image": _B} and first.err == "" and f'+image = "{_B}"' in first.out
    assert "already" in m5("pin", "--image", "localhost/m5/train:v2").err
    # One image has a digest for each platform, and another for all platforms.
    engine.write_text(json.dumps([_A, _B]))
    assert "already" in m5("pin", "--image", "localhost/m5/train:v2").err and section(place) == {"image": _B}
    engine.write_text(json.dumps([_C]))
    moved = m5("pin", "--image", "localhost/m5/train:v2")
    assert moved.err == f"localhost/m5/train was sha256:{'b' * 64}, is sha256:{'c' * 64}\n"
    assert section(place) == {"image": _C} and f'-image = "{_B}"' in moved.out.splitlines()
    engine.write_text(json.dumps(["localhost/other@sha256:" + "d" * 64]))
    assert m5("pin", "--image", "localhost/other").err == ""


def test_a_run_and_an_image_are_pinned_together(m5: M5, place: Path, home: Repository, engine: Path) -> None:
    engine.write_text(json.dumps([_B]))
    run = train(home, _FACTS | {"container.image": _A}, **FINISHED)
    assert m5("pin", run, "--image", "localhost/m5/train:v2").status == 0
    assert section(place) == {"image": _B, "wanted": _WANTED}


def test_no_engine_that_answers_is_an_error(
    m5: M5, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (place / "m5ws.toml").read_bytes()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert m5("pin", "--image", "train:v2").status == 3
    assert (place / "m5ws.toml").read_bytes() == before
