"""The evidence of a verdict: all results that the run wrote, and no clock.

Scripts write random values into some of their results, and are replayed. Each verdict is compared with a table of the
outcome for each result, and with the files of both runs on disk, compared here by their bytes.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.campaigns import soak_page
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import Workspace, make_workspace

_SETTINGS = """\
name = "small"
[data]
paths = ["data"]
[run]
command = ["train.py"]
trainer = "python"
outputs = {outputs}
keep_work = true
fingerprint_every = 1
[mlflow]
enabled = {mlflow}
"""
_HEAD = """\
import json, os, random, sys, time
from pathlib import Path
chance = random.SystemRandom().random()
scratch = Path({scratch!r})
Path('out').mkdir(exist_ok=True)
"""
_SESSION = """\
import torch, m5ws
m5ws.seed(7)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in m5ws.session(model, optimizer, total_steps=3).steps():
    loss = model(torch.randn(4, 3)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    value = float(loss)
    {inside}
    step.record(loss=value)
"""
_LEAKS = {
    "nothing": "",
    "a file": "Path('out/#.txt').write_text(str(chance))",
    "a value": "Path('out/#.json').write_text(json.dumps({'loss': chance, 'train_runtime': 1.0}))",
    "a key": "Path('out/#.json').write_text(json.dumps({'loss': 1, str(chance): 1}))",
    "a key twice": "Path('out/#.json').write_text('{\"a\": %r, \"a\": 1}' % chance)",
    "a name": "Path(f'out/#{chance}.txt').write_text('1')",
    "a folder": "Path(f'out/#{chance}').mkdir(); Path(f'out/#{chance}/a.txt').write_text('1')",
    "a link": "(scratch / '#').write_text(str(chance)); os.symlink(scratch / '#', 'out/#.pt')",
    "a linked folder": "(scratch / '#').mkdir(exist_ok=True); (scratch / '#/a').write_text(str(chance));"
    " os.symlink(scratch / '#', 'out/#')",
    "an array": "import numpy; numpy.save('out/#.npy', numpy.array([chance]))",
    "an archive": "import numpy; numpy.savez('out/#.npz', w=numpy.zeros(3), v=numpy.array([chance]))",
    "a tensor": "import torch; torch.save({'w': torch.zeros(3), 'v': torch.tensor([chance])}, 'out/#.pt')",
    "state": "import torch; torch.save({'w': torch.zeros(3), 'lr': chance}, 'out/#.pt')",
    "a pickle of old": "import torch; torch.save([chance], 'out/#.bin', _use_new_zipfile_serialization=False)",
    "stdout": "print(chance)",
    "a clock": "Path('out/#.json').write_text(json.dumps({'loss': 1, 'train_runtime': chance}))",
    "a clock in state": "import torch; torch.save({'w': torch.zeros(3), 'start_time': chance}, 'out/#.ckpt')",
    "the run's place": "Path('out/#.txt').write_text(os.path.abspath('out'))",
    "the place in state": "import torch; torch.save({'w': torch.zeros(3), 'd': os.path.abspath('out')}, 'out/#.ckpt')",
    "a log": "Path('out/#.log').write_text(str(chance))",
    "beside": "Path('#.pt').write_text(str(chance))",
    "a link to nothing": "os.symlink(scratch / f'{chance}', 'out/#.pt')",
    "a metric": "import mlflow\nwith mlflow.start_run(): mlflow.log_metric('#', chance)",
}
"""`#` stands for a name that is unique in the script."""
_STEPS = {
    "a step": "value += chance * (step.number == 2)",
    "a weight": "model.weight.data[0, 0] += chance * 1e-3 * (step.number == 2)",
    "a generator": "torch.manual_seed(int(chance * 2**32)) if step.number == 3 else None",
}
"""Leaks of a script with a session."""
_RANDOM_TENSORS = {"an array", "an archive", "a tensor"}
_TENSORS = _RANDOM_TENSORS | {"state", "a clock in state", "the place in state"}
"""Leaks into files with tensors. Other values in these are listed."""
_UNJUDGED = {"nothing", "stdout", "a name", "a folder", "beside", "a link to nothing", "the run's place", "a metric"}
"""Leaks into no file that both runs have. A run and its replay have the same place."""
_HEADER = (
    "| chance leaks into | seed | scripts | with a session | nondeterministic | reproduced | not comparable | falsely "
    "reproduced | results not listed |\n|---|---|---|---|---|---|---|---|---|"
)


class _Case(msgspec.Struct, frozen=True):
    """A script: the random results, the declared outputs, and whether one result is always the same."""

    leaks: tuple[str, ...]
    outputs: str = '["out"]'
    steady: bool = True
    session: bool = False

    @property
    def declared(self) -> bool:
        return '"out"' in self.outputs

    @property
    def script(self) -> str:
        """The text of the script, without its head."""
        inside = "\n    ".join(_STEPS[leak] for leak in self.leaks if leak in _STEPS) or "pass"
        lines = ["Path('out/same.txt').write_text('1')"] if self.steady else []
        lines += [_SESSION.format(inside=inside)] if self.session else []
        named = enumerate(leak for leak in self.leaks if leak not in _STEPS)
        return "\n".join([*lines, *(_LEAKS[leak].replace("#", f"n{number}") for number, leak in named)]) + "\n"

    @property
    def outcome(self) -> str:
        """The expected outcome of the verdict."""
        leaks = set(self.leaks)
        files = leaks if self.declared else set()
        if leaks & _STEPS.keys() or files & _RANDOM_TENSORS:
            return "nondeterministic"
        if self.session or files & _TENSORS:
            return "sampled" if "a link" in files else "reproduced"  # A text with the name of weights.
        if files - _UNJUDGED or "a metric" in leaks:
            return "nondeterministic"
        return "reproduced" if self.declared and (self.steady or "the run's place" in leaks) else "not comparable"


class _Verdict(msgspec.Struct, frozen=True):
    """A verdict on a case, and the files of the original and of the replay."""

    case: _Case
    found: dict[str, Any]
    files: tuple[dict[str, bytes], dict[str, bytes]]

    @property
    def told(self) -> str:
        """All lists of the verdict, as one text."""
        first = self.found["first"] or {"quantity": ""}
        names = [item["name"] for item in self.found["items"] if item["status"] != "equal"]
        return "\n".join([*self.found["not_compared"], *names, first["quantity"]])

    def wrong(self) -> bool:
        """Return True if the outcome differs from the expected one."""
        return bool(self.found["outcome"] != self.case.outcome)

    def unlisted(self) -> list[str]:
        """Return the files that differ, or were not compared, and are missing in the verdict's lists."""
        old, new = self.files
        differ = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        outside = {name for name in old.keys() | new.keys() if not self.case.declared or not name.startswith("out/")}
        expected = {_plain(name) for name in differ | outside}
        listed = "\n".join([self.told, *(_plain(word) for word in self.told.split())])
        return sorted(name for name in expected if name not in listed)


def _plain(name: str) -> str:
    """Return a path up to its random part."""
    return name.partition("0.")[0]


def _workspace(root: Path, case: _Case) -> Workspace:
    workspace = make_workspace(root / "w", "plain.py", nproc=1)
    (root / "scratch").mkdir()
    mlflow = str("a metric" in case.leaks).lower()
    (workspace.root / "m5ws.toml").write_text(_SETTINGS.format(outputs=case.outputs, mlflow=mlflow))
    (workspace.root / "out").mkdir()
    (workspace.root / "out" / ".gitkeep").touch()
    (workspace.root / "train.py").write_text(_HEAD.format(scratch=str(root / "scratch")) + case.script)
    commit_all(workspace.root)
    return workspace


def _judge(root: Path, case: _Case) -> _Verdict:
    """Train and replay a script."""
    workspace = _workspace(root, case)
    run = workspace.train()
    verdict = workspace.json("reproduce", run, expect=None)
    return _Verdict(case, verdict, (_left(workspace, run), _left(workspace, verdict["replay"])))


def _left(workspace: Workspace, run: str) -> dict[str, bytes]:
    """Return the files in a run's work directory, by path. m5ws removes the inputs of finished runs."""
    work = workspace.root / ".m5ws" / "runs" / run / "0001" / "work"
    return {
        path.relative_to(work).as_posix(): path.read_bytes()
        for path in work.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".gitkeep"
    }


def _check(root: Path, case: _Case) -> None:
    """Check the rule of evidence on a replay of a script with random values in these places."""
    verdict = _judge(root, case)
    assert not verdict.wrong() and verdict.unlisted() == [], verdict


def _draw(chance: random.Random) -> _Case:
    session = chance.random() < 0.25
    places = [*_LEAKS, *_STEPS] * session or [*_LEAKS]
    return _Case(
        leaks=tuple(chance.sample(places, chance.choice((1, 1, 2, 3)))),
        outputs=chance.choice(('["out"]', '["out"]', '["out", "data"]', '["data"]', "[]")),
        steady=chance.random() < 0.7,
        session=session,
    )


@pytest.mark.parametrize(
    "case",
    [
        _Case(("a link",)),
        _Case(("a link to nothing",)),
        _Case(("a tensor",)),
        _Case(("the place in state",), '["out", "data"]'),
        _Case(("beside",), steady=False),
        _Case(("a clock",), steady=False),
        _Case(("a tensor",), session=True),
        _Case(("a file", "a log"), session=True),
        _Case(("a step",), "[]", session=True),
    ],
    ids=str,
)
def test_a_verdict_rests_on_results_that_the_run_wrote(tmp_path: Path, case: _Case) -> None:
    _check(tmp_path, case)


@pytest.mark.long
def test_a_metric_of_a_script_with_a_session_is_listed(tmp_path: Path) -> None:
    _check(tmp_path, _Case(("a metric",), session=True))


@pytest.mark.long
@pytest.mark.parametrize("leak", [leak for leak in (*_LEAKS, *_STEPS) if leak != "a metric"])
def test_every_place_that_chance_leaks_into(tmp_path: Path, leak: str) -> None:
    _check(tmp_path, _Case((leak,), session=leak in _STEPS))


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_scripts_at_random(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """A campaign, of `--campaign-count` scripts drawn with `--campaign-seed`."""
    seed = pytestconfig.getoption("--campaign-seed") or random.SystemRandom().randrange(10**6)
    chance, seen, faults = random.Random(seed), list[_Verdict](), list[str]()
    for number in range(pytestconfig.getoption("--campaign-count") or 80):
        verdict = _judge(tmp_path / str(number), case := _draw(chance))
        seen.append(verdict)
        if verdict.wrong() or verdict.unlisted():
            faults.append(f"{case}: {verdict.found['outcome']}, not listed: {verdict.unlisted()}: {verdict.told}")
            print(faults[-1])
        print(number, case.leaks, verdict.found["outcome"], flush=True)
    soak_page.write("evidence", [_HEADER, *(_row(leak, seed, seen) for leak in (*_LEAKS, *_STEPS))])
    assert not faults, "\n".join(faults)


def _row(leak: str, seed: int, seen: list[_Verdict]) -> str:
    own = [verdict for verdict in seen if leak in verdict.case.leaks]
    outcomes = Counter(verdict.found["outcome"] for verdict in own)
    false = sum(verdict.wrong() and verdict.found["outcome"] == "reproduced" for verdict in own)
    cells = [leak, seed, len(own), sum(verdict.case.session for verdict in own)]
    cells += [outcomes[outcome] for outcome in ("nondeterministic", "reproduced", "not comparable")]
    return "| " + " | ".join(map(str, [*cells, false, sum(bool(verdict.unlisted()) for verdict in own)])) + " |"
