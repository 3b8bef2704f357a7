"""Scripts of Hugging Face's Trainer, Lightning and Hydra that know nothing of m5ws: reproduced, diverged, resumed."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import m5ws
from tests.conftest import loud_skip
from tests.support.workspace.checkouts import commit_all, write

pytestmark = pytest.mark.services

_SCRIPTS = Path(__file__).parent / "scripts"
_PACKAGES = Path(__file__).parent / "frameworks.txt"
_SETTINGS = """\
[config]
files = ['{config}']
[run]
command = ['train.py']
trainer = 'python'
outputs = ['{outputs}']
environment = {{ DIE = '{mark}', HF_HUB_OFFLINE = '1' }}
[mlflow]
enabled = false
"""
_CONFIG = "learning_rate: 0.01\nsteps: 12\n"
_HYDRA = """\
defaults:
  - optimizer: sgd
  - _self_
steps: 12
out: ${hydra:runtime.output_dir}
started: ${now:%Y-%m-%d %H:%M}
"""


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """A script, its files, the file with the learning rate, its folder of outputs, and its files there."""

    script: str
    files: Mapping[str, str]
    config: str
    outputs: str
    weights: str
    end: str
    log: str


_FRAMEWORKS = [
    Framework(
        script="hf_trainer",
        files={"config.yaml": _CONFIG},
        config="config.yaml",
        outputs="out",
        weights="out/model.safetensors",
        end="out/model.safetensors",
        log="tfevents",
    ),
    Framework(
        script="lightning_module",
        files={"config.yaml": _CONFIG},
        config="config.yaml",
        outputs="out",
        weights="out/checkpoints/last.ckpt",
        end="out/checkpoints/last.ckpt",
        log="tfevents",
    ),
    Framework(
        script="hydra_app",
        files={"conf/config.yaml": _HYDRA, "conf/optimizer/sgd.yaml": "learning_rate: 0.01\n"},
        config="conf/optimizer/sgd.yaml",
        outputs="outputs",
        weights="outputs/TIME/model.pt",
        end="outputs/last.pt",
        log="train.log",
    ),
]


class Place(msgspec.Struct, frozen=True):
    """A workspace with a framework's script, and the interpreter that has the framework."""

    root: Path
    python: Path
    mark: Path

    def m5ws(self, *words: str, expect: int = 0) -> "subprocess.CompletedProcess[str]":
        command = [str(self.python), "-P", "-m", "m5ws", "-C", str(self.root), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.root.rglob("logs/*.log")))
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}\n{done.stderr}\n{logs}"
        return done

    def run(self, *words: str, expect: int = 0) -> str:
        return self.m5ws("run", "--no-progress", *words, expect=expect).stdout.strip()

    def reproduce(self, run: str, *words: str, expect: int = 0) -> Any:
        return json.loads(self.m5ws("reproduce", run, "--no-progress", "--json", *words, expect=expect).stdout)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the frameworks, on top of that of the tests."""
    place = tmp_path_factory.mktemp("frameworks") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True)
    site = place / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    below = (sysconfig.get_path("purelib"), Path(m5ws.__file__).parent.parent)
    (site / "below.pth").write_text("".join(f"{path}\n" for path in below))
    interpreter = place / "bin" / "python"
    command = [str(interpreter), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(_PACKAGES)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        loud_skip(f"Hugging Face's Trainer, Lightning and Hydra: pip could not install them: {done.stderr[-300:]}")
    return interpreter


@pytest.fixture(scope="module", params=_FRAMEWORKS, ids=lambda one: one.script)
def framework(request: pytest.FixtureRequest) -> Framework:
    found = request.param
    assert isinstance(found, Framework)
    return found


@pytest.fixture(scope="module")
def place(framework: Framework, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp(framework.script)
    settings = _SETTINGS.format(config=framework.config, outputs=framework.outputs, mark=folder / "die")
    script = (_SCRIPTS / f"{framework.script}.py").read_text()
    write(folder / "w", {"m5ws.toml": settings, "train.py": script, ".gitignore": ".m5ws/\n", **framework.files})
    commit_all(folder / "w")
    return Place(folder / "w", python, folder / "die")


@pytest.fixture(scope="module")
def trained(place: Place) -> str:
    return place.run()


def test_it_is_reproduced_twice(framework: Framework, place: Place, trained: str) -> None:
    for _ in range(2):
        verdict = place.reproduce(trained)
        assert verdict["outcome"] == "reproduced" and verdict["first"] is None
        assert verdict["compared"]["files"] and verdict["outputs"]
        assert verdict["observed"] and verdict["compared"]["steps"] == 12
        assert any(framework.log in line for line in verdict["not_compared"])
        assert not any(line.startswith("differs") for line in verdict["outputs"])


def test_another_learning_rate_diverges_and_is_named(framework: Framework, place: Place, trained: str) -> None:
    key = f"{framework.config}:learning_rate" if framework.script == "hydra_app" else "learning_rate"
    verdict = place.reproduce(trained, "--set", f"{key}=0.02", expect=1)
    assert verdict["outcome"] == "diverged"
    assert "learning_rate: 0.01 → 0.02 is the only recorded change" in verdict["reason"]
    assert verdict["observed"] and verdict["first"]["step"] == 1
    # A Trainer's schedule may begin with 0.
    assert verdict["first"]["quantity"] in ("lr", "optimizer settings")


def test_a_killed_run_is_given_its_files_and_continues(
    framework: Framework, place: Place, trained: str, tmp_path: Path
) -> None:
    place.mark.touch()
    killed = place.run(expect=1)
    assert not place.mark.exists()
    place.run("--resume", killed)
    shown = place.m5ws("show", killed).stdout
    assert "outputs-restored" in shown
    assert ("inexact-resume" in shown) == (framework.script == "lightning_module")
    if framework.script == "lightning_module":
        # It restores no generator: dropout differs from the checkpoint on.
        assert "Restored all states" in place.m5ws("logs", killed).stdout
        return
    ends = []
    for run in (trained, killed):
        place.m5ws("outputs", run, str(tmp_path / run))
        ends.append((tmp_path / run / framework.end).read_bytes())
    assert ends[0] == ends[1]
