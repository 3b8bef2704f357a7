"""The examples of frameworks: reproduced, diverged, and killed and resumed.

Scripts without a line of m5ws are certified. Scripts with the line of an adapter are killed at moments of their own.
The results are the table in docs/how-to/frameworks.md, which `--update-golden` rewrites.
"""

import itertools
import json
import random
import re
import shutil
import subprocess
import tomllib
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import m5ws
from tests.services.conftest import M5ws, Versions
from tests.support.paths import ROOT
from tests.support.workspace import golden
from tests.support.workspace.checkouts import commit_all

pytestmark = pytest.mark.services

_HERE = Path(__file__).parent
_PAGE = ROOT / "docs" / "how-to" / "frameworks.md"
_STEPS = 12
_INTERRUPTED, _SAVED = 10, 8
"""`m5ws certify` interrupts an example in the middle of an epoch, two steps after a checkpoint in the middle of it."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of examples/, with its framework and the reason for the result of its resume."""

    name: str
    package: str
    reason: str
    has_line: bool = False
    """The script has the line of an adapter."""
    is_exact: bool = True
    """A resume gives the bits of an uninterrupted training."""
    config: str = "config.yaml"
    versions: Versions = "frameworks"
    previous: Versions = "previous_frameworks"


_EXAMPLES = (
    Example(name="hf-trainer", package="transformers", reason="`m5ws.adapters.transformers`", has_line=True),
    Example(name="lightning", package="lightning", reason="`m5ws.adapters.lightning`", has_line=True),
    Example(name="accelerate", package="accelerate", reason="`m5ws.adapters.accelerate`", has_line=True),
    Example(
        name="nanogpt",
        package="torch",
        is_exact=False,
        reason="`ckpt.pt` has no generators, from which nanoGPT draws its batches and dropout",
    ),
    Example(name="fabric", package="lightning", reason="the script saves its step and the generators of all ranks"),
    Example(
        name="torchtune",
        package="torchtune",
        reason="the recipe saves at the end of an epoch, and draws no random number in training",
        versions="torchtune",
        previous="previous_torchtune",
    ),
    Example(
        name="torchtitan",
        package="torchtitan",
        reason="torchtitan saves the position in the data, and no step draws from a generator, which it does not save",
        versions="torchtitan",
    ),
    Example(name="hydra", package="hydra-core", reason="the script seeds each step", config="conf/optimizer/sgd.yaml"),
)
_WITH_LINE = tuple(example for example in _EXAMPLES if example.has_line)
_WITHOUT_LINE = tuple(example for example in _EXAMPLES if not example.has_line)
_WITH_PREVIOUS = (
    *(example for example in _WITHOUT_LINE if example.package not in ("torch", "torchtitan", "hydra-core")),
    # Hydra 1.2 cannot be imported with Python 3.11.
    Example(
        name="torchtitan-0.2", package="torchtitan", reason="as with torchtitan 0.3", previous="previous_torchtitan"
    ),
)


class Place(msgspec.Struct, frozen=True):
    """A workspace with a copy of an example, `m5ws` for it, and the interpreter that has its framework."""

    root: Path
    python: Path
    run: M5ws

    def m5ws(self, *words: str, expect: int = 0) -> "subprocess.CompletedProcess[str]":
        done: subprocess.CompletedProcess[str] = self.run("-C", str(self.root), *words)
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.root.rglob("logs/*.log")))
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}\n{done.stderr}\n{logs}"
        return done

    def certify(self, expect: int) -> Any:
        return json.loads(self.m5ws("certify", "--no-progress", "--json", expect=expect).stdout)

    def reproduce(self, run: str, *words: str, expect: int = 0) -> Any:
        return json.loads(self.m5ws("reproduce", run, "--no-progress", "--json", *words, expect=expect).stdout)


class Result(msgspec.Struct, kw_only=True):
    """Measured results of an example with one version of its framework: a row of the table."""

    processes: int
    steps: int = 0
    reproduced: str = "–"
    diverged: str = "–"
    resume: str = "–"


Results = dict[tuple[Example, str], Result]
Certified = tuple[Place, Any, Result]
"""The place of an example, its certificate, and its results."""


@pytest.fixture(scope="module")
def results() -> Results:
    """Results by example and version of its framework."""
    return {}


def _program(python: Path) -> M5ws:
    """Return `m5ws` as users start it, with ranks that torchrun starts."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [python, "-P", "-m", "m5ws", *words], capture_output=True, text=True, timeout=600, check=False
        )

    return run


def _make_place(root: Path, name: str, python: Path, run: M5ws, changes: Mapping[str, str] = {}) -> Place:
    """Return a workspace with a copy of an example. `changes`: texts of its files, with their replacements."""
    shutil.copytree(ROOT / "examples" / name, root)
    with (root / "m5ws.toml").open("a") as settings:
        settings.write("\n[mlflow]\nenabled = false\n")
    (root / ".gitignore").write_text(".m5ws/\n")
    for old, new in changes.items():
        for path in (root / "m5ws.toml", root / "config.yaml"):
            path.write_text(path.read_text().replace(old, new))
    commit_all(root)
    return Place(root, python, run)


@pytest.fixture(scope="module")
def certify(
    interpreter: Callable[[Versions], Path],
    forked: Callable[[Versions], M5ws],
    tmp_path_factory: pytest.TempPathFactory,
    results: Results,
) -> Callable[[Example, Versions], Certified]:
    """Certify an example once: it trains without an interruption, and is killed and resumed."""

    @cache
    def certified(example: Example, versions: Versions) -> Certified:
        root, python = tmp_path_factory.mktemp(example.name) / "w", interpreter(versions)
        # Hydra names a folder after the second, and two forks would begin in the same folder.
        run = _program(python) if example.package == "hydra-core" else forked(versions)
        place = _make_place(root, example.name, python, run)
        certificate = place.certify(expect=0 if example.is_exact else 1)
        result = Result(processes=int(certificate["what"]["ranks"]), steps=certificate["steps"])
        results[example, _version(place, example.package)] = result
        return place, certificate, result

    return certified


@cache
def _version(place: Place, package: str) -> str:
    """Return a package's version in the environment of a place, without the part after the `+`."""
    code = f"import importlib.metadata as m; print(m.version({package!r}).partition('+')[0])"
    return subprocess.run([place.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _resume(place: Place, certificate: Any, example: Example) -> str:
    """Return the result of a resume: exact, or the first difference, which the run's notice reports too."""
    (verdict,) = certificate["verdicts"]
    assert (certificate["interrupted"], certificate["restored"]) == ([_INTERRUPTED], [_SAVED])
    assert verdict["observed"] and certificate["steps"] == _STEPS
    assert certificate["outcome"] == ("certified" if example.is_exact else "inexact")
    shown = place.m5ws("show", verdict["replay"]).stdout
    assert "outputs-restored" in shown
    assert example.is_exact or "inexact-resume" in shown
    if example.is_exact:
        return "exact"
    return f"inexact: {verdict['first']['quantity']} of step {verdict['first']['step']}"


@pytest.mark.soak
@pytest.mark.parametrize("example", [pytest.param(example, id=example.name) for example in _WITHOUT_LINE])
class TestExample:
    def test_an_example_is_reproduced(
        self, example: Example, certify: Callable[[Example, Versions], Certified]
    ) -> None:
        place, certificate, result = certify(example, example.versions)
        # By new processes, as users start them.
        launched = msgspec.structs.replace(place, run=_program(place.python))
        verdict = launched.reproduce(certificate["run"])
        assert verdict["outcome"] == "reproduced" and verdict["first"] is None
        assert verdict["observed"] and verdict["compared"]["steps"] == _STEPS * result.processes
        assert verdict["compared"]["files"]
        assert not any(item["judged"] for item in verdict["items"] if item["status"] != "equal")
        result.reproduced = "yes"

    def test_another_learning_rate_is_found_at_the_first_step(
        self, example: Example, certify: Callable[[Example, Versions], Certified]
    ) -> None:
        place, certificate, result = certify(example, example.versions)
        key = f"{example.config}:learning_rate" if example.name == "hydra" else "learning_rate"
        verdict = place.reproduce(certificate["run"], "--set", f"{key}=0.02", expect=1)
        assert verdict["outcome"] == "diverged"
        assert "learning_rate: 0.01 → 0.02 is the only recorded change" in verdict["sentence"]
        # A Trainer's schedule may begin with 0.
        assert verdict["observed"] and verdict["first"]["quantity"] in ("lr", "optimizer settings")
        assert verdict["first"]["step"] == 1
        result.diverged = f"step {verdict['first']['step']}"

    def test_a_resume_is_exact_or_its_difference_is_named(
        self, example: Example, certify: Callable[[Example, Versions], Certified]
    ) -> None:
        place, certificate, result = certify(example, example.versions)
        version = _version(place, example.package)
        assert certificate["what"].get(example.package, version).startswith(version)
        result.resume = _resume(place, certificate, example)


@pytest.mark.soak
@pytest.mark.parametrize("example", _WITH_PREVIOUS, ids=lambda example: example.name)
def test_a_run_resumes_with_the_previous_framework_version(
    example: Example, certify: Callable[[Example, Versions], Certified]
) -> None:
    place, certificate, result = certify(example, example.previous)
    result.resume = _resume(place, certificate, example)


class Kill(msgspec.Struct, frozen=True):
    """A kill of rank 0 after some steps, and with `all` of the processes above it; the words of kill_at_step.py."""

    step: int
    words: str


_KILLS = (Kill(10, "SIGKILL after"), Kill(5, "SIGTERM forward"))


@pytest.fixture(scope="module")
def uninterrupted(
    interpreter: Callable[[Versions], Path], forked: Callable[[Versions], M5ws], tmp_path_factory: Any, results: Results
) -> Callable[[Example, Versions], tuple[Place, Result]]:
    """Train an example with the line of an adapter once."""

    @cache
    def trained(example: Example, versions: Versions) -> tuple[Place, Result]:
        root, python = tmp_path_factory.mktemp(example.name) / "w", interpreter(versions)
        place = _make_place(root, example.name, python, forked(versions))
        shutil.copy(_HERE / "scripts" / "kill_at_step.py", root)
        commit_all(root)
        place.m5ws("run", "--no-progress", "--name", "whole")
        run = m5ws.Workspace(root).run("whole")
        ranks = 1 if example.name == "hf-trainer" else 2
        assert len(run.steps(ranks - 1)) == _STEPS and not run.steps(ranks)
        result = results[example, _version(place, example.package)] = Result(processes=ranks, steps=_STEPS)
        return place, result

    return trained


def _command(example: Example) -> list[str]:
    """Return the command of an example, up to its script."""
    words: list[str] = tomllib.loads((ROOT / "examples" / example.name / "m5ws.toml").read_text())["run"]["command"]
    return words[:-1]


def _kill_and_resume(place: Place, example: Example, kill: Kill, name: str) -> None:
    """Kill a training, resume it, and compare its steps and last state with the uninterrupted training's."""
    mark = place.root / ".m5ws" / f"mark-{name}"  # Else m5ws records it as an input of the run.
    mark.write_text(kill.words)
    killed = place.run(
        "-C", str(place.root), "run", "--no-progress", "--name", name, "--",
        *_command(example), "kill_at_step.py", str(kill.step), str(mark), "train.py",
    )  # fmt: skip
    assert not mark.exists(), killed
    if killed.returncode == 0:
        # All ranks end after the same step. It may be the step after the signal, here the last step of the training.
        assert "SIGTERM" in kill.words and kill.step + ("forward" in kill.words) >= _STEPS - 1, killed
        _compare(place, name)
        return
    resumed = place.run("-C", str(place.root), "resume", name, "--no-progress")
    if resumed.returncode == 2:
        assert "neither a checkpoint nor output files" in resumed.stderr, resumed
        place.m5ws("resume", name, "--no-progress", "--from-scratch")
    else:
        assert resumed.returncode == 0, resumed
    _compare(place, name)


def _compare(place: Place, name: str) -> None:
    """Compare each step and the last state of a finished run and of the whole training."""
    workspace = m5ws.Workspace(place.root)
    whole, again = workspace.run("whole"), workspace.run(name)
    assert again.state == "finished" and _facts(whole) == _facts(again)


def _facts(run: m5ws.Run) -> list[Any]:
    """Return the recorded values of all steps and ranks, and the bytes of the last state."""
    times = ("seconds", "time_s")
    steps = [[{k: v for k, v in step.items() if k not in times} for step in run.steps(rank)] for rank in range(2)]
    tensors = {**run.load("model"), **run.load("optimizer")}
    return [steps, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}]


@pytest.mark.soak
@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda example: example.name)
def test_an_example_uses_nothing_that_is_not_pinned(
    example: Example, interpreter: Callable[[Versions], Path], tmp_path: Path
) -> None:
    python = interpreter(example.versions)
    place = _make_place(tmp_path / "w", example.name, python, _program(python))
    settings = place.root / "m5ws.toml"
    settings.write_text(settings.read_text().replace("[run]\n", '[run]\ninputs = "pinned"\n'))
    place.m5ws("run", "--no-progress")
    assert list(place.root.glob(".m5ws/runs/*/0001/context")) and not list(place.root.glob(".m5ws/**/refused"))


Trained = Callable[[Example, Versions], tuple[Place, Result]]


def _in_campaign(example: Example) -> Any:
    """Return a parameter. The tests of adapters, below, are run with all frameworks."""
    return pytest.param(example, id=example.name, marks=() if example.name == "hf-trainer" else pytest.mark.soak)


@pytest.mark.parametrize("example", [*map(_in_campaign, _WITH_LINE)])
class TestLine:
    def test_a_killed_training_is_resumed_exactly(self, example: Example, uninterrupted: Trained) -> None:
        place, result = uninterrupted(example, example.versions)
        for number, kill in enumerate(_KILLS):
            _kill_and_resume(place, example, kill, f"killed-{number}")
        # SIGTERM saves a checkpoint of the step after which all ranks stop. Lightning calls forward inside the step.
        stopped = json.loads(place.m5ws("show", "killed-1", "--json").stdout)["state"]["attempts"][0]
        assert stopped["checkpoints"][-1]["step"] == stopped["last_step"] >= 5
        verdict = place.reproduce("killed-0")
        # A checkpoint that the framework saved in the killed attempt may be in the replay alone.
        assert verdict["outcome"] in ("reproduced", "sampled") and not verdict["observed"]
        assert verdict["first"] is None and verdict["compared"]["steps"] == _STEPS * result.processes
        result.reproduced, result.resume = "yes", "exact"

    def test_another_learning_rate_is_found_at_its_first_use(self, example: Example, uninterrupted: Trained) -> None:
        place, result = uninterrupted(example, example.versions)
        verdict = place.reproduce("whole", "--set", "learning_rate=0.02", expect=1)
        assert verdict["outcome"] == "diverged" and not verdict["observed"]
        # The Trainer's schedule begins with 0.
        assert verdict["first"]["quantity"] == "lr"
        assert verdict["first"]["step"] == (2 if example.name == "hf-trainer" else 1)
        result.diverged = f"step {verdict['first']['step']}"

    @pytest.mark.soak
    def test_a_run_resumes_with_the_previous_framework_version(self, example: Example, uninterrupted: Trained) -> None:
        place, result = uninterrupted(example, example.previous)
        _kill_and_resume(place, example, _KILLS[0], "killed")
        result.resume = "exact"

    @pytest.mark.soak
    def test_a_run_resumes_exactly_after_each_of_ten_random_kills(
        self, example: Example, uninterrupted: Trained, request: pytest.FixtureRequest
    ) -> None:
        place, _ = uninterrupted(example, example.versions)
        seed = request.config.getoption("--campaign-seed") or random.randrange(2**32)
        draw = random.Random(seed)
        alone = msgspec.structs.replace(place, run=_program(place.python))
        for number, signal in zip(range(10), itertools.cycle(("SIGKILL all", "SIGKILL", "SIGTERM")), strict=False):
            kill = Kill(draw.randrange(1, _STEPS), f"{signal} {draw.choice(('before', 'after', 'forward'))}")
            print(f"seed {seed}: {kill}", flush=True)
            _kill_and_resume(alone, example, kill, f"drawn-{number}")


@pytest.mark.parametrize("versions", ["frameworks", pytest.param("previous_frameworks", marks=pytest.mark.soak)])
def test_the_adapter_tests_pass_with_the_installed_versions(
    versions: Versions, interpreter: Callable[[Versions], Path]
) -> None:
    command = [str(interpreter(versions)), "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    command.append("tests/training/test_adapters.py")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-6000:]


def test_the_documentation_contains_the_measured_results(results: Results, request: pytest.FixtureRequest) -> None:
    """Each row that was measured here. `make soak` measures the rows of previous versions."""
    page = _PAGE.read_text()
    begin, end = "<!-- results: begin -->\n", "<!-- results: end -->\n"
    table = page.partition(begin)[2].partition(end)[0]
    assert table
    written = table
    for (example, version), result in results.items():
        name = f"| {example.package} {version} | `{example.name}` |"
        measured = (result.processes, result.steps, result.reproduced, result.diverged, result.resume, example.reason)
        if result.resume == "–":
            continue  # a test of this example failed
        row = f"{name} {' | '.join(map(str, measured))} |"
        known = re.search(f"^{re.escape(name)}.*$", written, re.MULTILINE)
        written = written.replace(known[0], row) if known else f"{written}{row}\n"
    if written != table and request.config.getoption(golden.FLAG):
        _PAGE.write_text(page.replace(table, written))
        warnings.warn("table rewritten: docs/how-to/frameworks.md", stacklevel=1)
        return
    assert written == table, "pytest tests/services/test_frameworks.py -m services --update-golden rewrites the table"
