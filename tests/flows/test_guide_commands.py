"""Each command in the README, the guides and the reference is run, with ids and places of a workspace filled in.

The commands of the tutorial, of the README's first screen and of the transcripts are also compared with their output
(`test_documented_commands.py`, `tests/services/test_transcripts.py`).
"""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.support.paths import ROOT
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import SCRIPTS, Workspace

_PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]
_REFERENCE = [page for page in (ROOT / "docs" / "reference").glob("*.md") if page.name != "commands.md"]
_ELSEWHERE = {
    "--trainer deepspeed": "tests/flows/test_certify.py",
    "accelerate launch": "tests/services/test_frameworks.py",
    "deepspeed --num_gpus": "tests/contract/test_launchers.py",
    "init --store s3": "tests/flows/test_s3_store.py",
    "init --team": "tests/cli/test_team.py",
    "init --template": "tests/templates",
    "pin --image": "tests/services/test_pins.py",
    "--env rebuild": "tests/flows/test_rebuild.py",
    "resume RUN --at": "tests/cli/test_outputs.py",
    "consumed ": "tests/flows/test_consumed.py",
    "--without ": "tests/flows/test_consumed.py",
    "fork RUN ": "tests/flows/test_removed.py",
    "--drop": "tests/flows/test_removed.py",
    "sync ": "tests/cli/test_sync.py",
    "ui ": "tests/tracking/test_client.py",
    "--on cloud": "tests/flows/test_batch_jobs.py",
    "--on k8s": "tests/flows/test_kubernetes_jobs.py",
    "--on sky": "tests/flows/test_task_file_jobs.py",
    "--on ": "tests/flows/test_clusters.py",
    "cancel ": "tests/flows/test_clusters.py",
    "cause --wrong": "tests/cli/test_cause.py",
    "notify ": "tests/cli/test_incidents.py",
}
"""Commands that need another program, a server or minutes, and the tests that run them."""
_CONFIG = """\
optimizer: {lr: 0.001}
learning_rate: 0.01
dropout: 0.1
dtype: float32
layers: 1
seed: 0
steps: 6
warmup: 100
width: 8
zero_stage: 2
"""
_SETTINGS = """\
[config]
files = ["config.yaml"]
[run]
command = ["train.py", "--lr", "1e-3", "--tokenizer", "{tokenizer}"]
fingerprint_every = 1
[mlflow]
enabled = false
"""


def _documented() -> Iterator[str]:
    """Yield the commands in code blocks, without the words that explain them."""
    for page in [*_PAGES, *_REFERENCE]:
        for line in page.read_text().splitlines():
            match = re.match(r"    (?:\$ )?m5ws ((?:.(?!  +| # ))*.)", line)
            if match and page.name != "tutorial.md":
                yield match[1].strip()


_COMMANDS = list(dict.fromkeys(_documented()))


class _Places:
    """The ids and folders that stand for the ids and folders of the pages."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder / "w")
        root = self.workspace.root
        (root / "pkg").mkdir(parents=True)
        script = (SCRIPTS / "guided.py").read_text()
        for name in ("train.py", "pkg/train.py"):
            (root / name).write_text(script)
        (root / "run.sh").write_text("python train.py\n")
        (root / "config.yaml").write_text(_CONFIG)
        tokenizer = folder / "tok"
        tokenizer.mkdir()
        (tokenizer / "merges.txt").write_text("{}")
        Tokenizer(WordLevel({"a": 0}, "a")).save(str(tokenizer / "tokenizer.json"))
        (root / "m5ws.toml").write_text(_SETTINGS.replace("{tokenizer}", str(tokenizer)))
        commit_all(root)
        self.run, other, third = (self.workspace.train("--seed", str(seed)) for seed in (0, 1, 2))
        self._pair = self.workspace.train("--nproc", "2", "train.py")
        stop = folder / "stop"
        stop.touch()
        failing_script = ("train.py", "--lr", "1e-3", "--stop", str(stop))
        failing = [command for command in _COMMANDS if command.startswith(("resume RUN", "resume 7c1d"))]
        self._failed = {
            command: self.workspace.json("run", "--", *failing_script, expect=1)["run"]["id"] for command in failing
        }
        swept = self.workspace.process("sweep", "--json", "lr=1e-3,2e-3", "--", *failing_script, expect=1)
        self.sweep = json.loads(swept.stdout)["sweep"]["id"]
        stop.unlink()
        key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (root / "team.allowed").write_text(f"me@example.org {key.with_suffix('.pub').read_text()}")
        self.workspace.m5ws("reproduce", self.run)
        self.workspace.m5ws("push", self.run, "--to", str(folder / "bucket"))
        words = {
            "RUN@20000": f"{self.run}@6", "RUN@STEP": f"{self.run}@4", "RUN": self.run, "A": self.run, "B": other,
            "7c1d": self.run, "9a04": other, "5e77": third, "8346": self.run, "5cc7": third, "5eeb0c1d27e5": self.sweep,
            "20000": "2", "20500": "4", "DIR": str(folder / "exported"), "~/.ssh/id_ed25519": str(key),
            "/mnt/team/m5ws": str(folder / "team"), "s3://our-bucket/llm?region=eu-west-1": str(folder / "bucket"),
            "first": self.run, "faster": third, "/shared/tok": str(tokenizer),
        }  # fmt: skip
        self._words = words | {name: str(root / name) for name in ("team.allowed", "7c1d.verdict.json")}
        self._folder = folder

    def fill_in(self, command: str) -> list[str]:
        """Return the words of a command with the ids and places of the workspace."""
        words = shlex.split(command)
        for position, word in enumerate(words):
            if words[position - 1] in ("-o", "--html"):
                words[position] = str(self.workspace.root / word)
        run = self._pair if "--rank" in words else self._failed.get(command, self.run)
        filled = [self._words.get(word, word).replace(self.run, run) for word in words]
        return ["-C", str(self._folder), *filled] if words == ["init"] else filled


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> _Places:
    return _Places(tmp_path_factory.mktemp("guides"))


def _verdicts(words: list[str]) -> set[int]:
    """Return the exit statuses of a command that did its work: a verdict on a changed replay is *diverged*.

    No line of a log may match a pattern.
    """
    changed = words[0] == "reproduce" and "--set" in words
    has_answers = changed or words[0] in ("diff", "compare", "bisect") or "--grep" in words
    return {0, 1} if has_answers else {0}


@pytest.mark.long
@pytest.mark.xdist_group("guides")
@pytest.mark.parametrize("command", _COMMANDS)
def test_a_documented_command_does_its_work(command: str, places: _Places) -> None:
    for part, place in _ELSEWHERE.items():
        if part in f"{command} ":
            assert (ROOT / place).exists()
            pytest.skip(f"{place} runs {command}")
    words = places.fill_in(command)
    # tests/cli/test_sweep.py trains sweeps.
    if words[0] == "sweep" or places.sweep in words:
        words.insert(1, "--dry-run")
    if "--every" in words:  # It repeats a command until Ctrl-C.
        position = words.index("--every")
        del words[position : position + 2]
    # Ranks of a typed launcher are no forks.
    is_launched = "torchrun" in words
    answer = ["--yes"] if words[0] == "adopt" and "--dry-run" not in words else []
    # Each check of a busy machine takes long.
    answer += ["--timeout", "200"] if words[0] == "doctor" else []
    done = (places.workspace.process if is_launched else places.workspace.m5ws)(*words, *answer, expect=None)
    assert done.returncode in _verdicts(words), f"{words} → {done.returncode}\n{done.stdout}\n{done.stderr}"
