"""Small, real workspaces, and their command line: in this process with forked ranks, or as a separate process."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from m5ws.repository.repository import Repository
from m5ws.runs import history
from m5ws.runs.history import History
from m5ws.store import open_store
from tests.support.workspace import command_line
from tests.support.workspace.checkouts import commit_all

SCRIPTS = Path(__file__).parents[2] / "flows" / "scripts"
_CORPUS = "\n".join(f"the {number} quick brown foxes jump over {number * 7} lazy dogs" for number in range(400))

_SETTINGS = """\
name = "small"

[config]
files = ["config.yaml"]

[tokenizer]
path = "tokenizer"

[data]
paths = ["data"]

[run]
command = ["train.py"]
trainer = "{trainer}"
nproc = {nproc}
checkpoint_every = 4
fingerprint_every = 1
{run}

[mlflow]
enabled = {mlflow}
"""

_CONFIG = """\
# Values that the tests change.
learning_rate: 0.01
steps: 10
dropout: 0.1
hidden: 128
batch: 8
pause_s: 0.0
stage: 2
"""


_PATIENCE_S = 550
"""The first launch with DeepSpeed builds its operators, which takes minutes of two cores."""


class Workspace(msgspec.Struct, frozen=True):
    """A workspace on disk and its command line."""

    root: Path

    def m5ws(
        self, *arguments: str, expect: int | None = 0, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run `m5ws` in this process. Fail the test, with all output, if its exit status is not `expect`."""
        return self._judged(command_line.call("-C", str(self.root), *arguments, environment=environment), expect)

    def process(self, *arguments: str, expect: int | None = 0) -> "subprocess.CompletedProcess[str]":
        """Run `m5ws` as a separate process with real launches; otherwise like `m5ws`."""
        command = [sys.executable, "-m", "m5ws", "-C", str(self.root), *arguments]
        return self._judged(
            subprocess.run(command, env=command_line.inherited(), capture_output=True, text=True, timeout=_PATIENCE_S),
            expect,
        )

    def _judged(
        self, done: "subprocess.CompletedProcess[str]", expect: int | None
    ) -> "subprocess.CompletedProcess[str]":
        if expect is not None and done.returncode != expect:
            paths = sorted(self.root.rglob("logs/*.log"))
            logs = "".join(f"\n--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in paths)
            pytest.fail(f"{' '.join(done.args)} → {done.returncode}\n{done.stdout}\n{done.stderr}{logs}")
        return done

    def json(self, *arguments: str, expect: int | None = 0) -> Any:
        """Run a verb with --json and return the parsed output."""
        verb, *rest = arguments
        return json.loads(self.m5ws(verb, "--json", *rest, expect=expect).stdout)

    def train(self, *arguments: str) -> str:
        """Run to the end and return the run's id."""
        return str(self.json("run", *arguments)["run"]["id"])

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start `m5ws` in the background."""
        command = [sys.executable, "-m", "m5ws", "-C", str(self.root), *arguments]
        return subprocess.Popen(
            command, env=command_line.inherited(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    @property
    def repo(self) -> Repository:
        return Repository.open(open_store(str(self.root / ".m5ws" / "store")))

    def history(self, run: str) -> History:
        return history.load(self.repo, run)

    def states(self, run: str) -> tuple[Any, dict[int, dict[int, Any]]]:
        """Return the contents of a run's checkpoints, and the fingerprints of all ranks after each step."""
        loaded = self.history(run)
        states = {
            rank: {step: (value.tensors, value.generators) for step, value in series.items()}
            for rank, series in loaded.states.items()
        }
        return loaded.contents, states

    def edit(self, path: str, old: str, new: str) -> None:
        """Change a file of the checkout, which must contain the old text."""
        file = self.root / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))


def make_forgetful(root: Path, *, run: str = "") -> Workspace:
    """Make a workspace with FSDP2 training of an unregistered loader: a resume starts its data from the beginning."""
    workspace = make_workspace(root, "fsdp.py", nproc=1, run=run)
    workspace.edit("train.py", "loader=loader, ", "")
    workspace.edit("train.py", "step.next_batch()", "next(loader)")
    return workspace


def make_workspace(
    root: Path, script: str, *, trainer: str = "torchrun", nproc: int = 2, mlflow: bool = False, run: str = ""
) -> Workspace:
    """Make a workspace in git whose train.py is a copy of `scripts/<script>`."""
    for folder in ("data", "tokenizer"):
        (root / folder).mkdir(parents=True)
    (root / "train.py").write_text((SCRIPTS / script).read_text())
    (root / "small.py").write_text((SCRIPTS / "small.py").read_text())
    (root / "config.yaml").write_text(_CONFIG)
    (root / "data" / "corpus.txt").write_text(_CORPUS)
    settings = _SETTINGS.format(trainer=trainer, nproc=nproc, mlflow=str(mlflow).lower(), run=run)
    (root / "m5ws.toml").write_text(settings)
    (root / ".gitignore").write_text(".m5ws/\n")
    train_tokenizer(root, 120)
    commit_all(root)
    return Workspace(root)


def make_file_workspace(root: Path) -> Workspace:
    """Make a workspace whose script has no session, logs nothing to MLflow, and writes into its declared outputs."""
    workspace = make_workspace(root, "plain.py", nproc=1, run='outputs = ["out"]')
    for old, new in (
        ("import mlflow", "from types import SimpleNamespace"),
        ("with mlflow.start_run():", "if True:"),
        ("mlflow.log_metric(", "print("),
        (", step=step)", ")"),
    ):
        workspace.edit("train.py", old, new)
    return workspace


def train_tokenizer(root: Path, size: int) -> None:
    """Train a real BPE tokenizer on the workspace's corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator([_CORPUS], trainer)
    tokenizer.save(str(root / "tokenizer" / "tokenizer.json"))
