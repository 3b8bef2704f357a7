"""Engines that answer. A program on PATH stands for each engine; tests/services/test_images.py has a real engine."""

import itertools
import json
from pathlib import Path

import pytest

from m5ws.containers import engines
from m5ws.containers.engines import APPTAINER, DOCKER, PODMAN, EngineError, NoEngine

ENGINES = (PODMAN, DOCKER, APPTAINER)
A, B = ("sha256:" + letter * 64 for letter in "ab")


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def image(folder: Path, name: str, digests: list[str]) -> engines.Engine:
    """Return an engine with one image, which has these names by digest."""
    program(folder, name, f"case $1 in image) echo '{json.dumps(digests)}';; *) echo 1.0;; esac")
    return engines.answering({"PATH": str(folder)})


@pytest.mark.parametrize("states", list(itertools.product(("answers", "silent", "absent"), repeat=3)))
def test_the_first_engine_that_answers_is_used(tmp_path: Path, states: tuple[str, ...]) -> None:
    scripts = {"answers": "echo 1.0", "silent": "echo version; echo no server of $0 >&2; exit 1"}
    (tmp_path / "bin").mkdir()
    for name, state in zip(ENGINES, states, strict=True):
        if state != "absent":
            program(tmp_path / "bin", name, scripts[state])
    environment = {"PATH": str(tmp_path / "bin")}
    if "answers" in states:
        assert engines.answering(environment).name == ENGINES[states.index("answers")]
        return
    with pytest.raises(NoEngine) as refused:
        engines.answering(environment)
    lines = str(refused.value).splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == list(ENGINES)
    for state, line in zip(states, lines, strict=True):
        assert ("no server of" if state == "silent" else "not on PATH") in line


def test_an_engine_that_cannot_be_started_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / PODMAN).write_text("#!/no/such/interpreter\n")
    (tmp_path / PODMAN).chmod(0o755)
    with pytest.raises(NoEngine, match="could not be started"):
        engines.answering({"PATH": str(tmp_path)})


@pytest.mark.parametrize("name", ["train", "train:v2", "host:5000/m5/train", "host:5000/m5/train:v2", f"train@{A}"])
def test_a_digest_has_the_name_of_its_image(tmp_path: Path, name: str) -> None:
    engine = image(tmp_path, PODMAN, [f"aaa/other@{B}", f"host:5000/m5/train@{A}", f"host:5000/m5/pretrain@{B}"])
    assert engines.digest(engine, name) == f"host:5000/m5/train@{A}"


def test_an_image_without_a_digest_is_refused(tmp_path: Path) -> None:
    engine = image(tmp_path, DOCKER, [])
    with pytest.raises(EngineError, match="docker has no digest of the image train:v2"):
        engines.digest(engine, "train:v2")


def test_apptainer_has_no_digests(tmp_path: Path) -> None:
    engine = image(tmp_path, APPTAINER, [f"train@{A}"])
    with pytest.raises(EngineError, match="apptainer prints no digest"):
        engines.digest(engine, "train")
