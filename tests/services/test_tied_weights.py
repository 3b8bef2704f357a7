"""Weights of a real model with ties and a buffer that is not persistent: loaded by name, and by `from_pretrained`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.conftest import Versions
from tests.support.workspace.checkouts import commit_all

pytestmark = [pytest.mark.services, pytest.mark.soak]

_SCRIPT = Path(__file__).parent / "scripts" / "tied_llama.py"
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def test_a_tied_llama_is_loaded_from_its_run_and_from_its_export(
    interpreter: Callable[[Versions], Path], tmp_path: Path
) -> None:
    python, root = interpreter("frameworks"), tmp_path / "w"
    root.mkdir()
    (root / "m5ws.toml").write_text('[run]\ncommand = ["train.py"]\noutputs = ["out"]\n[mlflow]\nenabled = false\n')
    (root / "config.json").write_text(json.dumps(_CONFIG))
    (root / "train.py").write_text(_SCRIPT.read_text())
    (root / ".gitignore").write_text(".m5ws/\n")
    commit_all(root)

    def call(*words: str) -> str:
        command = [str(python), "-P", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    run = call("-m", "m5ws", "run", "--no-progress")
    call("-m", "m5ws", "checkpoint", "export", run, str(tmp_path / "hf"), "--format", "hf")
    loaded = json.loads(call("train.py", str(root), run, str(tmp_path / "hf")).splitlines()[-1])
    assert loaded == {"same": [True, True], "missing": [], "unexpected": []}
