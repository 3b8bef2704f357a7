"""A script without m5ws: compared by its files and by the metrics that it logged."""

from pathlib import Path

import pytest

from tests.support.workspace.checkouts import write
from tests.support.workspace.workspaces import Workspace, make_workspace

_RUN = 'outputs = ["out"]'


def _without_mlflow(root: Path) -> Workspace:
    workspace = make_workspace(root, "plain.py", nproc=1, run=_RUN)
    workspace.edit("train.py", "import mlflow", "from types import SimpleNamespace")
    workspace.edit("train.py", "with mlflow.start_run():", "if True:")
    workspace.edit("train.py", "mlflow.log_metric(", "print(")
    workspace.edit("train.py", ", step=step)", ")")
    return workspace


def test_a_run_without_results_gets_a_warning_and_is_not_comparable(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1, run=_RUN)
    (workspace.root / "train.py").write_text(
        "import os\nos.mkdir('made')\nfor name in ('beside.txt', 'made/a', 'made/b'):\n    open(name, 'w').close()\n"
    )
    done = workspace.m5ws("run", "--no-progress")
    assert "cannot verify it" in done.stderr and "The script wrote no file to out" in done.stderr
    verdict = workspace.json("reproduce", done.stdout.strip(), expect=2)
    assert verdict["outcome"] == "not comparable" and "recorded nothing" in verdict["sentence"]
    assert any("beside.txt" in gap["sentence"] for gap in verdict["not_compared"])
    assert not (workspace.root / ".m5ws" / "runs" / verdict["replay"] / "0001" / "work").exists()


def test_the_first_process_of_a_node_observes_whatever_its_number(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1, run=_RUN)
    workspace.edit("m5ws.toml", "[mlflow]", '[run.environment]\nRANK = "1"\nWORLD_SIZE = "2"\n\n[mlflow]')
    (workspace.root / "train.py").write_text("open('out/a', 'w').close()\n")
    assert workspace.json("run")["run"]["id"]


def test_a_failed_run_is_not_replayed(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1, run=_RUN)
    (workspace.root / "train.py").write_text("open('out/a', 'w').close()\nraise ValueError('no such model')\n")
    run = workspace.json("run", expect=1)["run"]["id"]
    verdict = workspace.json("reproduce", run, expect=2)
    assert verdict["outcome"] == "not comparable"
    assert "the original failed" in verdict["sentence"] and "no such model" in verdict["sentence"]
    states = {row["id"]: row["standing"] for row in workspace.json("ls")["runs"]}
    assert states == {run: "failed", verdict["replay"]: "refused"}
    assert not (workspace.root / ".m5ws" / "runs" / verdict["replay"] / "0001" / "work").exists()


@pytest.mark.soak
def test_a_command_starts_in_the_callers_folder_or_in_the_directory_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = _without_mlflow(tmp_path / "w")
    vae = workspace.root / "exp" / "vae"
    files = {
        "shared/common.py": "value = 1\n",
        "exp/vae/own.json": '{"width": 3}\n',
        "exp/vae/main.py": "import common, json, sys\n"
        "assert json.load(open(sys.argv[1]))['width'] == 3\nopen('a', 'w')\n",
    }
    write(workspace.root, files)
    monkeypatch.setenv("PYTHONPATH", str(workspace.root / "shared"))
    typed = (("main.py", "own.json"), ("-m", "main", "own.json"), ("sh", "-c", "python main.py own.json"))
    for words in typed:
        done = workspace.process("-C", str(vae), "run", "--no-progress", "--", *words)
        spec = workspace.json("show", done.stdout.strip())["run"]["spec"]
        assert spec["directory"] == "exp/vae" and spec["environment"]["PYTHONPATH"] == "shared"
        assert "exp/vae/a" in done.stderr
    workspace.m5ws("-C", str(vae), "run", "--no-progress", "--no-observe", "--", "train.py", "4")
    workspace.m5ws("run", "--no-progress", "--", "main.py", "own.json", expect=2)
    workspace.edit("m5ws.toml", "[run]\n", '[run]\ndirectory = "exp/vae"\n')
    run = workspace.process("run", "--no-progress", "--", "main.py", "own.json").stdout.strip()
    assert workspace.json("show", run)["run"]["spec"]["directory"] == "exp/vae"
    (parameter,) = [row for row in workspace.json("ls", "--where", '"args.width" = 3')["runs"] if row["id"] == run]
    assert parameter["standing"] == "finished"


def test_a_file_missing_from_the_snapshot_is_named_and_output_folders_exist(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1, run='outputs = ["out", "logs/metrics.json"]')
    (workspace.root / "ignored").mkdir()
    (workspace.root / "ignored" / "a.txt").write_text("1")
    (workspace.root / ".gitignore").write_text(".m5ws/\nignored/\n")
    (workspace.root / "train.py").write_text(
        "import os, sys\nos.makedirs('out', exist_ok=True)\n"
        "for name in ('out/a', 'logs/metrics.json'):\n    open(name, 'w').close()\nopen(sys.argv[1])\n"
    )
    done = workspace.m5ws("run", "--", "train.py", "ignored/a.txt", expect=1)
    assert 'paths = ["ignored"]' in done.stderr
    workspace.train("--", "train.py", "config.yaml")
    (workspace.root / "train.py").write_text("import os\nos.mkdir('out')\nos.mkdir('out')\n")
    assert "FileExistsError" in workspace.m5ws("run", expect=1).stderr


def test_the_python_trainer_runs_an_unseeded_script_in_one_process(tmp_path: Path) -> None:
    workspace = _without_mlflow(tmp_path / "w")
    workspace.edit("train.py", 'if "unseeded" not in', 'assert "RANK" not in os.environ\nif "unseeded" not in')
    run = workspace.train("--trainer", "python", "--", "train.py", "unseeded")
    assert workspace.json("reproduce", run)["outcome"] == "reproduced"
    refused = workspace.m5ws("run", "--trainer", "python", "--nproc", "2", expect=2)
    assert "starts 1 process" in refused.stderr and "torchrun" in refused.stderr
