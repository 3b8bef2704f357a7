"""What a verdict on a script without a session rests on: results that the run wrote, all of them, and no clock."""

import random
from pathlib import Path

import pytest

from checkouts import commit_all
from workspaces import Workspace, make_workspace

_SETTINGS = """\
name = "small"
[data]
paths = ["data"]
[run]
command = ["train.py"]
trainer = "python"
outputs = {outputs}
[mlflow]
enabled = false
"""
_HEAD = """\
import json, os, random, sys, time
from pathlib import Path
chance = random.SystemRandom().random()
scratch = Path({scratch!r})
"""
_LEAKS = {
    "nothing": "",
    "a file": "Path('out/a.txt').write_text(str(chance))",
    "a value": "Path('out/a.json').write_text(json.dumps({'loss': chance, 'train_runtime': 1.0}))",
    "a key": "Path('out/a.json').write_text(json.dumps({'loss': 1, str(chance): 1}))",
    "a key twice": "Path('out/a.json').write_text('{\"a\": %r, \"a\": 1}' % chance)",
    "a name": "Path(f'out/{chance}.txt').write_text('1')",
    "a folder": "Path(f'out/{chance}').mkdir(); Path(f'out/{chance}/a.txt').write_text('1')",
    "a link": "(scratch / 'a').write_text(str(chance)); os.symlink(scratch / 'a', 'out/a.pt')",
    "a linked folder": "(scratch / 'f').mkdir(exist_ok=True); (scratch / 'f/a').write_text(str(chance));"
    " os.symlink(scratch / 'f', 'out/f')",
    "an array": "import numpy; numpy.save('out/a.npy', numpy.array([chance]))",
    "an archive": "import numpy; numpy.savez('out/a.npz', w=numpy.zeros(3), v=numpy.array([chance]))",
    "a tensor": "import torch; torch.save({'w': torch.zeros(3), 'v': torch.tensor([chance])}, 'out/a.pt')",
    "state": "import torch; torch.save({'w': torch.zeros(3), 'lr': chance}, 'out/a.pt')",
    "a pickle of old": "import torch; torch.save([chance], 'out/a.bin', _use_new_zipfile_serialization=False)",
    "stdout": "print(chance)",
    "a clock": "Path('out/a.json').write_text(json.dumps({'loss': 1, 'train_runtime': chance}))",
    "a clock in state": "import torch; torch.save({'w': torch.zeros(3), 'start_time': chance}, 'out/a.ckpt')",
    "the run's place": "Path('out/a.txt').write_text(os.path.abspath('out'))",
    "the place in state": "import torch; torch.save({'w': torch.zeros(3), 'd': os.path.abspath('out')}, 'out/a.ckpt')",
    "a log": "Path('out/a.log').write_text(str(chance))",
    "beside": "Path('model.pt').write_text(str(chance))",
    "a link to nothing": "os.symlink(scratch / f'{chance}', 'out/a.pt')",
}
_HARMLESS = {
    "nothing": None,
    "stdout": None,
    "a clock": "train_runtime",
    "a clock in state": "start_time",
    "the run's place": None,
    "the place in state": None,
    "a log": "out/a.log",
    "beside": "model.pt",
    "a link to nothing": "out/a.pt",
}
"""Leaks into no judged result, and what a verdict must name."""


def _workspace(root: Path, leaks: list[str], outputs: str, steady: bool) -> Workspace:
    workspace = make_workspace(root / "w", "plain.py", nproc=1)
    (root / "scratch").mkdir()
    (workspace.root / "m5ws.toml").write_text(_SETTINGS.format(outputs=outputs))
    (workspace.root / "out").mkdir()
    (workspace.root / "out" / ".gitkeep").touch()
    lines = [_HEAD.format(scratch=str(root / "scratch"))]
    lines += ["Path('out/same.txt').write_text('1')"] if steady else []
    (workspace.root / "train.py").write_text("\n".join([*lines, *(_LEAKS[leak] for leak in leaks)]) + "\n")
    commit_all(workspace.root)
    return workspace


def _check(root: Path, leaks: list[str], outputs: str, steady: bool) -> None:
    """Hold the rule of evidence against a replay of a script that leaks chance in these places."""
    workspace = _workspace(root, leaks, outputs, steady)
    verdict = workspace.json("reproduce", workspace.train(), expect=None)
    case = f"{leaks} {outputs} {steady}: {verdict}"
    declared = "out" in outputs
    told = "\n".join([*verdict["not_compared"], *verdict["outputs"]])
    if declared and any(leak not in _HARMLESS for leak in leaks):
        assert verdict["outcome"] == "nondeterministic", case
        return
    judged = {"a clock", "a clock in state", "the run's place", "the place in state"}
    kept = declared and (steady or bool(judged.intersection(leaks)))
    assert verdict["outcome"] == ("reproduced" if kept else "not comparable"), case
    for leak in leaks:
        named = _HARMLESS[leak] if declared else None
        assert named is None or named in told, case
        if not declared and leak not in ("nothing", "stdout"):
            assert "written outside [run] outputs" in told, case


def _draws(seed: int, count: int) -> list[tuple[list[str], str, bool]]:
    """Return scripts at random: places that are written to differ, so that none hides another."""
    chance = random.Random(seed)
    cases = []
    for _ in range(count):
        leaks = [chance.choice(list(_LEAKS))]
        cases.append(
            (leaks, chance.choice(['["out"]', '["out"]', '["out", "data"]', '["data"]']), chance.random() < 0.7)
        )
    return cases


@pytest.mark.parametrize(
    ("leak", "outputs", "steady"),
    [
        ("a link", '["out"]', True),
        ("a link to nothing", '["out"]', True),
        ("a tensor", '["out"]', True),
        ("the place in state", '["out", "data"]', True),
        ("beside", '["out"]', False),
    ],
)
def test_a_verdict_rests_on_results_that_the_run_wrote(tmp_path: Path, leak: str, outputs: str, steady: bool) -> None:
    _check(tmp_path, [leak], outputs, steady)


@pytest.mark.long
@pytest.mark.parametrize("leak", list(_LEAKS))
def test_every_place_that_chance_leaks_into(tmp_path: Path, leak: str) -> None:
    _check(tmp_path, [leak], '["out"]', steady=True)


@pytest.mark.soak
@pytest.mark.parametrize(("leaks", "outputs", "steady"), _draws(1, 60))
def test_scripts_at_random(tmp_path: Path, leaks: list[str], outputs: str, steady: bool) -> None:
    _check(tmp_path, leaks, outputs, steady)
