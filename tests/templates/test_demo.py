"""The demo: commands that can be typed, planned before any is run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from m5ws.errors import UsageError
from m5ws.projects import demo
from tests.support.ranks.forks import ForkParents
from tests.support.workspace import checkouts, command_line
from tests.templates.conftest import shrink


def test_everything_is_a_command_that_can_be_typed(tmp_path: Path) -> None:
    commands = demo.plan(tmp_path / "d")
    assert {command.argv[0] for command in commands} == {"m5ws", "python"}
    verbs = [command.argv[2] for command in commands if command.argv[0] == "m5ws"]
    assert verbs == ["init", "run", "reproduce", "reproduce"]
    assert not (tmp_path / "d").exists()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        demo.plan(tmp_path)
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / "none"))):
        demo.plan(tmp_path / "d", tmp_path / "none")


def test_each_demo_has_a_new_directory(tmp_path: Path) -> None:
    for name in ("m5ws-demo", "m5ws-demo-2", "m5ws-demo-3"):
        assert demo.free_directory(tmp_path) == tmp_path / name
        (tmp_path / name).mkdir()


def test_a_command_gets_the_id_of_the_run_and_one_that_ends_otherwise_ends_the_demo(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    first = demo.Command(argv=("python", "-c", f"import os; os.mkdir({str(root)!r})"), title="one")
    run = demo.Command(argv=("python", "-c", "print('id-7'); print('more')"), prints_run=True)
    check = "import sys, os; sys.exit(sys.argv[1] != 'id-7' or os.getcwd() != sys.argv[2])"
    use = demo.Command(argv=("python", "-c", check, "RUN", str(root)))
    bad = demo.Command(argv=("python", "-c", "import sys; sys.exit(3)"), expect=1)
    shown: list[str] = []
    with pytest.raises(demo.DemoFailed, match="status 3, not 1"):
        demo.execute((first, run, use, bad), root, shown.append)
    assert shown[0] == "\n# one" and shown[2] == f"$ cd '{root}'" and shown[4:6] == ["id-7", "more"]
    assert " id-7 " in shown[6]


@pytest.mark.long
def test_the_demo_works_inside_another_git_repository(
    tmp_path: Path, text: Path, fork_parents: ForkParents, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "outer"
    checkouts.write(outer, {"outer.py": "a = 1\n", ".gitignore": "*.yaml\nmodel.py\n"})
    checkouts.commit_all(outer)
    workspace = outer / "below"
    run = ""
    outputs = []
    with command_line.forked_ranks(fork_parents):
        for number, command in enumerate(demo.plan(workspace, text)):
            monkeypatch.chdir(workspace if number else outer)
            argv = [run if word == "RUN" else word for word in command.argv]
            if argv[0] == "python":
                subprocess.run((sys.executable, *argv[1:]), check=True)
                continue
            done = command_line.call(*argv[1:])
            assert done.returncode == command.expect, done.stdout + done.stderr
            outputs.append(done.stdout)
            run = done.stdout.splitlines()[0] if command.prints_run else run
            if "init" in argv:
                shrink(workspace)
                with (workspace / "m5ws.toml").open("a") as settings:
                    settings.write("enabled = false\n")  # [mlflow] is the last section.
    assert "REPRODUCED" in outputs[2] and "DIVERGED" in outputs[3]
    snapshot = json.loads(command_line.call("show", run, "--json").stdout)["run"]["snapshot"]
    shown = json.loads(command_line.call("show", snapshot, "--json").stdout)
    assert shown["snapshot"]["code"]["commit"] == checkouts.git(workspace, "rev-parse", "HEAD")
    assert checkouts.git(outer, "status", "--porcelain").split() == ["??", "below/"]


@pytest.mark.soak
def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "m5ws", "demo", str(tmp_path / "d"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout.count("REPRODUCED"), done.stdout.count("DIVERGED")) == (1, 1)
    assert len(done.stdout.splitlines()) <= 44
