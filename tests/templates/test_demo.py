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
    planned = demo.plan(demo.DemoOptions(directory=tmp_path / "d"))
    assert {command.argv[0] for command in planned.commands} == {"m5ws", "python"}
    verbs = [
        next(word for word in command.argv[1:] if word != "-q")
        for command in planned.commands
        if command.argv[0] == "m5ws"
    ]
    assert verbs == [
        *("init", "snapshot", "run", "reproduce", "reproduce", "diff"),
        *("init", "snapshot", "run", "reproduce"),
    ]
    assert not (tmp_path / "d").exists()


def test_ids_are_known_before_they_are_used(tmp_path: Path) -> None:
    planned = demo.plan(demo.DemoOptions(directory=tmp_path / "d"))
    known: set[str] = set()
    for command in planned.commands:
        used = {word[1:-1] for word in command.argv if word.startswith("{")}
        assert used <= known
        known |= {command.keeps} if command.keeps else set()


def test_a_command_shows_where_it_is_run_and_the_ids_it_takes(tmp_path: Path) -> None:
    here = tmp_path / "with space"
    command = demo.Command(argv=("m5ws", "diff", "{run}", "{changed}"), directory=here)
    assert command.typed(None, {"run": "abc"}) == (f"cd '{here}'", "m5ws diff abc CHANGED")
    assert command.typed(here, {}) == ("m5ws diff RUN CHANGED",)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        demo.plan(demo.DemoOptions(directory=tmp_path))
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / "none"))):
        demo.plan(demo.DemoOptions(directory=tmp_path / "d", text=tmp_path / "none"))


def test_each_demo_has_a_new_directory(tmp_path: Path) -> None:
    for name in ("m5ws-demo", "m5ws-demo-2", "m5ws-demo-3"):
        assert demo.free_directory(tmp_path) == tmp_path / name
        (tmp_path / name).mkdir()


def test_a_command_that_ends_otherwise_ends_the_demo(tmp_path: Path) -> None:
    good = demo.Command(argv=("python", "-c", "print('made id-7'); print('more')"), directory=tmp_path, keeps="run")
    check = "import sys; sys.exit(sys.argv[1] != 'id-7')"
    uses = demo.Command(argv=("python", "-c", check, "{run}"), directory=tmp_path)
    bad = demo.Command(argv=("python", "-c", "import sys; sys.exit(3)"), directory=tmp_path, expect=1)
    options = demo.DemoOptions(directory=tmp_path, templates=())
    shown: list[str] = []
    with pytest.raises(demo.DemoFailed, match="status 3, not 1"):
        demo.execute(demo.DemoPlan(options=options, commands=(good, uses, bad)), shown.append)
    assert shown[:4] == [f"$ cd {tmp_path}", f"$ {good.typed(tmp_path, {})[0]}", "made id-7", "more"]


@pytest.mark.long
def test_the_demo_works_inside_another_git_repository(
    tmp_path: Path, text: Path, fork_parents: ForkParents, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "outer"
    checkouts.write(outer, {"outer.py": "a = 1\n", ".gitignore": "*.yaml\nmodel.py\n"})
    checkouts.commit_all(outer)
    root = outer / "below" / "demo"
    workspace = root / "gpt-fsdp"
    planned = demo.plan(demo.DemoOptions(directory=root, templates=("gpt-fsdp",), text=text))
    root.mkdir(parents=True)
    ids: dict[str, str] = {}
    outputs = []
    with command_line.forked_ranks(fork_parents):
        for command in planned.commands:
            monkeypatch.chdir(command.directory)
            argv = [ids.get(word.strip("{}"), word) for word in command.argv]
            if argv[0] == "python":
                subprocess.run((sys.executable, *argv[1:]), check=True)
                continue
            done = command_line.call(*argv[1:])
            assert done.returncode == command.expect, done.stdout + done.stderr
            outputs.append(done.stdout)
            if command.keeps:
                ids[command.keeps] = done.stdout.splitlines()[0].split()[-1]
            if argv[1] == "init":
                shrink(workspace)
                with (workspace / "m5ws.toml").open("a") as settings:
                    settings.write("enabled = false\n")  # [mlflow] is the last section.
    assert "REPRODUCED" in outputs[3] and "DIVERGED" in outputs[4]
    shown = json.loads(command_line.call("show", ids["snapshot"], "--json").stdout)
    assert shown["snapshot"]["code"]["commit"] == checkouts.git(workspace, "rev-parse", "HEAD")
    assert checkouts.git(outer, "status", "--porcelain").split() == ["??", "below/"]


@pytest.mark.soak
def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "m5ws", "demo", str(tmp_path / "d"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("REPRODUCED") == 2
    assert done.stdout.count("DIVERGED") == 1
