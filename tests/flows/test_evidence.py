"""The evidence of a verdict: scripts into whose results chance leaks.

A script trains in one of four ways, once or killed and resumed. Random values leak into some of its results, of which
`[run] results` names some. The outcome follows from the four rules of a verdict, and each
file on disk has one status in the verdict, by its bytes.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.support.campaigns import soak_page
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import Workspace, make_workspace

Way = Literal["session", "push", "observed", "none"]
"""`push`: the interface of the session that adapters use. `none`: without torch."""

_SETTINGS = """\
name = "small"
[run]
command = ["train.py"]
outputs = ["out"]
results = {results}
keep_work = true
checkpoint_every = 2
fingerprint_every = 1
[checkpoint]
asynchronous = false
[mlflow]
enabled = {mlflow}
"""
_HEAD = """\
import json, os, pickle, random, signal
from pathlib import Path
import numpy
chance, is_killed, scratch = random.SystemRandom().random(), {killed}, Path({scratch!r})
Path('out').mkdir(exist_ok=True)
def end_of(step):
    if is_killed and step == 3 and not (scratch / 'killed').exists():
        (scratch / 'killed').touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
_MODEL = """\
import torch, m5ws
torch.manual_seed(1)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def train(step):
    loss = model(torch.full((4, 3), 1.0 / step)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {inside}
    return loss.item()
"""
_TRAININGS: dict[Way, str] = {
    "session": """\
for step in m5ws.session(model, optimizer, total_steps=5).steps():
    step.record(loss=train(step.number))
    end_of(step.number)
""",
    "push": """\
session = m5ws.session(model, optimizer, total_steps=5)
number = session.begin()
while not session.should_stop:
    session.end_step(loss=train(number))
    end_of(number)
    number += 1
""",
    "observed": """\
begin = 1
if Path('out/state.pt').exists():
    state = torch.load('out/state.pt')
    model.load_state_dict(state['model'])
    optimizer.load_state_dict(state['optimizer'])
    begin = state['step'] + 1
for number in range(begin, 6):
    train(number)
    if number % 2 == 0:
        torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'step': number}, 'out/state.tmp')
        os.replace('out/state.tmp', 'out/state.pt')
    end_of(number)
""",
    "none": """\
begin = int(Path('out/step.txt').read_text()) if Path('out/step.txt').exists() else 1
for number in range(begin, 6):
    Path('out/step.txt').write_text(str(number))
    end_of(number)
""",
}
_SECOND = (
    "extra = torch.optim.SGD(model.parameters(), lr=chance); model(torch.ones(1, 3)).sum().backward(); extra.step()"
)
_STEPS = {"a weight": "model.weight.data[0, 0] += chance * (step == 4)", "a loss": "loss = loss + chance * (step == 4)"}
"""Leaks within a training step."""
_AFTER = {"a weight after the last step": "model.weight.data[0, 0] += chance", "a second training": _SECOND}
_TENSORS = {
    "an array": "numpy.save('out/#.npy', numpy.array([chance]))",
    "arrays": "numpy.savez('out/#.npz', w=numpy.zeros(3), v=numpy.array([chance]))",
    "a tensor": "import torch; torch.save({'w': torch.zeros(3), 'v': torch.tensor([chance])}, 'out/#.pt')",
    "a tensor of old": "import torch; torch.save([torch.tensor([chance])], 'out/#.bin',"
    " _use_new_zipfile_serialization=False)",
    "a safe tensor": "import torch; from safetensors.torch import save_file;"
    " save_file({'v': torch.tensor([chance])}, 'out/#.safetensors')",
}
_ONE_SIDED = {"the name of a tensor": "numpy.save(f'out/#-{chance}.npy', numpy.array([1.0]))"}
_FILES = {
    "a text": "Path('out/#.txt').write_text(str(chance))",
    "a key": "Path('out/#.json').write_text(json.dumps({'steps': 5, 'train_runtime': chance}))",
    "a cell": "Path('out/#.csv').write_text(f'id,trip_duration\\n1,{chance}\\n')",
    "a pickled array": "Path('out/#.pkl').write_bytes(pickle.dumps({'w': numpy.array([chance])}))",
    "bytes": "Path('out/#.dat').write_bytes(os.urandom(64))",
    "a log": "Path('out/#.log').write_text(f'12:00:00 {chance}')",
    "a value beside a tensor": "numpy.savez('out/#.npz', w=numpy.zeros(3));"
    " import torch; torch.save({'w': torch.zeros(3), 'start_time': chance}, 'out/#.ckpt')",
}
_NAMES = {"the name of a text": "Path(f'out/#-{chance}.txt').write_text('1')"}
_TRACKED = {
    "a metric": "mlflow.log_metric('#', chance)",
    "a parameter": "mlflow.log_param('#', chance)",
    "an artifact": "mlflow.log_text(str(chance), '#.txt')",
    "an artifact with an array": "Path('#.npy').unlink(missing_ok=True); numpy.save('#.npy', numpy.array([chance]));"
    " mlflow.log_artifact('#.npy')",
}
_HARMLESS = {"nothing": "", "stdout": "print(chance)", "beside": "Path('#.txt').write_text(str(chance))"}
_LEAKS = _TENSORS | _ONE_SIDED | _FILES | _NAMES | _TRACKED | _HARMLESS
"""Leaks at the end of a script. `#` stands for a name that is unique in the script."""
_NAMED = {
    "a text": "out/#.txt",
    "a key": "out/#.json:train_runtime",
    "a cell": "out/#.csv:trip_duration",
    "bytes": "out/#.dat",
    "a log": "out/*.log",
    "a metric": "metric:#",
    "the name of a text": "out/#-*.txt",
}
"""Patterns of `[run] results` for leaks."""
_WITHOUT_TORCH = ("an array", "arrays", "a pickled array", *_ONE_SIDED, "a text", "a key", "a cell", "bytes", "a log")
_HEADER = (
    "| chance leaks into | seed | scripts | named | resumed | nondeterministic | reproduced | sampled | not comparable "
    "| false |\n|---|---|---|---|---|---|---|---|---|---|"
)


class _Case(msgspec.Struct, frozen=True):
    """A script: its way of training, the random results, the results that `[run] results` names, and a kill."""

    way: Way
    leaks: tuple[str, ...]
    named: frozenset[str] = frozenset()
    killed: bool = False

    @property
    def script(self) -> str:
        """The text of the script, without its head."""
        inside = "\n    ".join(_STEPS[leak] for leak in self.leaks if leak in _STEPS) or "pass"
        parts = [] if self.way == "none" else [_MODEL.format(inside=inside)]
        parts += [_TRAININGS[self.way], *(_AFTER[leak] for leak in self.leaks if leak in _AFTER)]
        parts += ["import mlflow\nmlflow.start_run()"] if self.tracks else []
        parts += [_LEAKS[leak].replace("#", f"n{number}") for number, leak in enumerate(self.leaks) if leak in _LEAKS]
        return "\n".join(parts) + "\n"

    @property
    def tracks(self) -> bool:
        return any(leak in _TRACKED for leak in self.leaks)

    @property
    def results(self) -> list[str]:
        """The patterns of `[run] results`."""
        return [_NAMED[leak].replace("#", f"n{number}") for number, leak in enumerate(self.leaks) if leak in self.named]

    @property
    def outcome(self) -> str:
        """The outcome by the rules a to d."""
        leaks = set(self.leaks)
        judged = leaks & (_STEPS | _AFTER | _TENSORS).keys() | leaks & {"an artifact with an array"}
        judged |= self.named - _NAMES.keys()
        # Observation sees the loss of `backward()`, and not the number that the script makes of it.
        judged -= {"a loss"} if self.way == "observed" else set()
        with_tensors = leaks & (_TENSORS | _ONE_SIDED).keys() or "a value beside a tensor" in leaks
        if self.way == "none" and not (with_tensors or "an artifact with an array" in leaks or self.named):
            judged |= leaks & {*_FILES, "a metric"}
        if judged:
            return "nondeterministic"
        others = {*_ONE_SIDED, *_FILES, *_NAMES} - {"a value beside a tensor"}
        if self.way == "none" and with_tensors and leaks <= others:
            return "not comparable" if not self.named else "sampled"
        return "sampled" if leaks & _ONE_SIDED.keys() else "reproduced"


class _Judged(msgspec.Struct, frozen=True):
    """A verdict on a case, and the files of the original and of the replay."""

    case: _Case
    verdict: dict[str, Any]
    files: tuple[dict[str, bytes], dict[str, bytes]]

    def faults(self) -> list[str]:
        """Return the breaches of the rules."""
        faults = [] if self.verdict["outcome"] == self.case.outcome else [f"not {self.case.outcome}"]
        items = [item for item in self.verdict.get("items", ()) if item["kind"] != "result"]
        names = Counter((item["kind"], item["name"]) for item in items)
        faults += [f"{name} has {count} statuses" for name, count in names.items() if count > 1]
        statuses = {item["name"]: item["status"] for item in items if item["kind"] == "file"}
        statuses |= {item["replayed_as"]: item["status"] for item in items if item.get("replayed_as")}
        old, new = self.files
        for name in old.keys() | new.keys():
            status = statuses.get(name)
            is_equal = old.get(name) == new.get(name)
            if status is None or (status == "equal" and not is_equal and name in old.keys() & new.keys()):
                faults.append(f"{name} is {status}")
        return faults


def _judge(root: Path, case: _Case) -> _Judged:
    """Train and replay a script."""
    workspace = make_workspace(root / "w", "plain.py", nproc=1)
    (root / "scratch").mkdir()
    settings = _SETTINGS.format(results=repr(case.results).replace("'", '"'), mlflow=str(case.tracks).lower())
    (workspace.root / "m5ws.toml").write_text(settings)
    head = _HEAD.format(killed=case.killed, scratch=str(root / "scratch"))
    (workspace.root / "train.py").write_text(head + case.script)
    commit_all(workspace.root)
    if case.killed:
        run = str(workspace.json("run", expect=1)["run"]["id"])
        workspace.m5ws("resume", run)
    else:
        run = workspace.train()
    verdict = workspace.json("reproduce", run, expect=None)
    return _Judged(case, verdict, (_left(workspace, run, 1 + case.killed), _left(workspace, verdict["replay"], 1)))


def _left(workspace: Workspace, run: str, attempt: int) -> dict[str, bytes]:
    """Return the output files in an attempt's work directory, by path."""
    work = workspace.root / ".m5ws" / "runs" / run / f"{attempt:04d}" / "work"
    return {path.relative_to(work).as_posix(): path.read_bytes() for path in work.rglob("out/*") if path.is_file()}


def _draw(chance: random.Random) -> _Case:
    way = chance.choice(tuple(_TRAININGS))
    places = [*_WITHOUT_TORCH, *_NAMES, *_HARMLESS] if way == "none" else [*_LEAKS, *_STEPS, *_AFTER]
    leaks = tuple(chance.sample(places, chance.choice((1, 1, 2, 3))))
    named = frozenset(leak for leak in leaks if leak in _NAMED and chance.random() < 0.4)
    return _Case(way, leaks, named, killed=chance.random() < 0.4)


@pytest.mark.parametrize(
    "case",
    [
        _Case("session", ("a second training",)),
        _Case("session", ("a tensor", "a text"), killed=True),
        _Case("push", ("a text", "a key"), frozenset(["a text"])),
        _Case("push", ("a cell", "a log", "stdout"), killed=True),
        _Case("observed", ("a weight after the last step",)),
        _Case("observed", ("a value beside a tensor", "bytes"), killed=True),
        _Case("observed", ("a weight",), killed=True),
        _Case("none", ("a text", "the name of a text")),
        _Case("none", ("an array", "a key"), killed=True),
        _Case("none", ("the name of a tensor", "the name of a text"), frozenset(["the name of a text"])),
    ],
    ids=str,
)
def test_a_verdict_follows_from_the_results_that_differ(tmp_path: Path, case: _Case) -> None:
    judged = _judge(tmp_path, case)
    assert not judged.faults(), judged.verdict


@pytest.mark.soak
@pytest.mark.parametrize("way", ["session", "none"])
def test_each_result_in_mlflow_has_one_status(tmp_path: Path, way: Way) -> None:
    judged = _judge(tmp_path, _Case(way, ("a parameter", "an artifact", "an artifact with an array", "a metric")))
    assert not judged.faults(), judged.verdict
    statuses = {(item["kind"], item["name"].rpartition("/")[2]): item["status"] for item in judged.verdict["items"]}
    assert statuses["parameter", "n0"] == statuses["artifact", "n1.txt"] == "differs"
    assert statuses["artifact", "n2.npy"] == statuses["metric", "n3"] == "differs"


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_random_scripts_get_the_expected_verdicts(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """A campaign, of `--campaign-count` scripts drawn with `--campaign-seed`."""
    seed = pytestconfig.getoption("--campaign-seed") or random.SystemRandom().randrange(10**6)
    chance, seen = random.Random(seed), list[_Judged]()
    for number in range(pytestconfig.getoption("--campaign-count") or 80):
        seen.append(_judge(tmp_path / str(number), _draw(chance)))
        print(number, seen[-1].case, seen[-1].verdict["outcome"], *seen[-1].faults(), flush=True)
    soak_page.write("evidence", [_HEADER, *(_row(leak, seed, seen) for leak in (*_LEAKS, *_STEPS, *_AFTER))])
    assert not [(judged.case, judged.faults()) for judged in seen if judged.faults()]


def _row(leak: str, seed: int, seen: list[_Judged]) -> str:
    own = [judged for judged in seen if leak in judged.case.leaks]
    outcomes = Counter(judged.verdict["outcome"] for judged in own)
    cells = [leak, seed, len(own), sum(leak in judged.case.named for judged in own)]
    cells += [sum(judged.case.killed for judged in own)]
    cells += [outcomes[outcome] for outcome in ("nondeterministic", "reproduced", "sampled", "not comparable")]
    return "| " + " | ".join(map(str, [*cells, sum(bool(judged.faults()) for judged in own)])) + " |"
