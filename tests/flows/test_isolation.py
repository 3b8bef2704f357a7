"""A run sees its snapshot and nothing else (promise 3), whatever happens to the author's checkout."""

import shutil
from pathlib import Path

import pytest

from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import Workspace, make_workspace


@pytest.mark.long
def test_changes_to_the_checkout_and_the_remote_do_not_affect_a_live_run(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py")
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "--bare", str(remote))
    git(workspace.root, "remote", "add", "origin", str(remote))
    git(workspace.root, "push", "origin", "main")
    snapshot = str(workspace.json("snapshot")["id"])
    undisturbed = workspace.train(snapshot)

    process = workspace.start("run", snapshot, "--no-progress", "--json")
    _ruin(workspace)
    shutil.rmtree(remote)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    verdict = workspace.json("reproduce", undisturbed)
    assert verdict["outcome"] == "reproduced"
    runs = [run["id"] for run in workspace.json("ls", "--runs")["runs"]]
    histories = [workspace.history(run) for run in runs]
    assert len(runs) == 3 and all(history.contents == histories[0].contents for history in histories)


def _ruin(workspace: Workspace) -> None:
    for name in ("train.py", "small.py"):
        (workspace.root / name).write_text("raise SystemExit('this is not the code of the snapshot')\n")
    (workspace.root / "config.yaml").unlink()
    shutil.rmtree(workspace.root / "data")
    shutil.rmtree(workspace.root / "tokenizer")
    git(workspace.root, "remote", "remove", "origin")


def test_code_imported_from_the_checkout_is_an_error(tmp_path: Path) -> None:
    """An editable install of a package that git ignores would import like this."""
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1)
    (workspace.root / "live").mkdir()
    (workspace.root / "live" / "helper_from_checkout.py").write_text("VALUE = 1\n")
    (workspace.root / ".gitignore").write_text(".m5ws/\nlive/\n")
    (workspace.root / "train.py").write_text(
        f"import sys\nsys.path.insert(0, {str(workspace.root / 'live')!r})\nimport helper_from_checkout\n"
    )
    done = workspace.m5ws("run", expect=1)
    assert "helper_from_checkout" in done.stderr and "train.py:3" in done.stderr


def test_code_of_the_checkout_that_is_loaded_by_path_is_an_error(tmp_path: Path) -> None:
    """Code loaded by its file's path, and removed from the loaded modules. An import by name gets the run's copy."""
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1)
    live = workspace.root / "live_code.py"
    live.write_text("import sys\nsys.modules.pop('live_code', None)\n")
    (workspace.root / "train.py").write_text(
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('by_path', {str(live)!r})\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
    )
    assert "live_code.py" in workspace.m5ws("run", expect=1).stderr
    by_name = (
        f"import sys\nsys.path.insert(0, {str(workspace.root)!r})\nimport importlib\n"
        "file = importlib.util.find_spec('live_code').origin\n"
        f"assert not file.startswith({str(workspace.root)!r}), file\n"
    )
    (workspace.root / "train.py").write_text(by_name)
    workspace.train()


def test_a_run_that_changes_its_inputs_gets_a_notice(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit(
        "train.py",
        "dist.destroy_process_group()",
        "import os\nos.chmod('config.yaml', 0o644)\nopen('config.yaml', 'a').write('#')\ndist.destroy_process_group()",
    )
    run = workspace.train()
    assert any(notice.kind == "input-modified" for notice in workspace.history(run).notices)
