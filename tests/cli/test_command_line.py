"""The command line itself: its imports, errors and completion."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from m5ws.cli import COMMANDS, cli
from m5ws.records.run import Axis, Sweep
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.workspace.checkouts import commit_all, git

HEAVY = (
    "torch",
    "mlflow",
    "dvc",
    "deepspeed",
    "git",
    "numpy",
    "rich",
    "tokenizers",
    "transformers",
    "boto3",
    "obstore",
)


def _run(*words: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "m5ws", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)


def _loaded(*calls: list[str]) -> set[str]:
    """The modules that a process has loaded after these calls of the command line."""
    code = (
        "import sys, json; from m5ws.cli import main; [main(words) for words in json.loads(sys.argv[1])]; "
        "print(); print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(calls)], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_loads_only_click_and_the_command_line() -> None:
    loaded = _loaded(["--help"])
    assert {name for name in loaded if name.split(".")[0] == "m5ws"} == {
        "m5ws", "m5ws.cli", "m5ws.cli.lazy_group", "m5ws.errors", "m5ws.version"
    }  # fmt: skip
    assert not loaded & {*HEAVY, "msgspec", "blake3", "logging", "subprocess"}


def test_the_help_of_a_verb_loads_nothing_heavy() -> None:
    assert not _loaded(*([name, "--help"] for name in COMMANDS)) & set(HEAVY)


def test_reading_verbs_load_nothing_heavy(place: Path, made: Any) -> None:
    verbs = (["ls"], ["diff", made.snapshot, made.changed], ["fsck"], ["ls", "--json"], ["snapshot"])
    assert not _loaded(*(["-C", str(place), *words] for words in verbs)) & set(HEAVY)
    # A commit is looked up in its repository.
    assert _loaded(["-C", str(place), "show", made.run]) & set(HEAVY) == {"git"}


def test_every_verb_has_the_short_help_that_the_list_shows() -> None:
    context = click.Context(cli)
    for name, short in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(200) == short, name


def test_without_a_verb_the_help_is_shown(m5: Any) -> None:
    done = m5()
    assert (done.status, done.out, done.err) == (2, m5("--help").out, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_commands_with_a_closed_standard_stream_damage_no_file(m5: Any, place: Path, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "m5ws"]
    for words in (["snapshot"], ["snapshot"], ["ls"]):
        assert subprocess.run([*shell, *words], cwd=place, check=False).returncode == 0
    assert subprocess.run([*shell, "show", "nothing"], cwd=place, check=False).returncode == 3
    done = m5("fsck", "--read-data")
    assert done.status == 0 and "1 snapshots and 0 runs" in done.out


def test_a_system_error_is_printed_without_a_traceback(m5: Any, place: Path) -> None:
    (place / ".m5ws").write_text("")
    done = m5("snapshot")
    assert done.status == 2
    assert "Traceback" not in done.err and ".m5ws" in done.err.splitlines()[0]
    assert "Traceback" in m5("-v", "snapshot").err


def test_a_closed_output_pipe_prints_no_error(place: Path, made: Any) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "m5ws", "-C", str(place), "ls"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_entry_point_passes_the_status_on(tmp_path: Path) -> None:
    assert _run("-C", tmp_path, "ls").returncode == 3
    assert _run("--help").returncode == 0


def _complete(words: str, place: Path) -> "subprocess.CompletedProcess[str]":
    line = f"m5ws -C {place} {words}"
    variables = {"_M5WS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return _run(env=os.environ | variables)


def _completed(words: str, place: Path) -> list[str]:
    done = _complete(words, place)
    return [row.split(",")[1] for row in done.stdout.splitlines() if row]


def test_completion_offers_verbs_ids_and_options(place: Path, made: Any) -> None:
    assert _completed("sn", place) == ["snapshot"]
    assert _completed("reproduce 7c", place) == sorted((made.run, made.replay))
    assert made.snapshot[:12] in _completed("show ", place)
    assert _completed("show --env", place) == ["--environment"]
    assert _completed("checkout 7c1d000000 ", place) != [made.run]


def test_completion_offers_sweeps(place: Path, home: Repository, made: Any) -> None:
    sweep = Sweep(id="5eeb00000000", snapshot=made.snapshot, axes=(Axis(key="lr", values=("1", "2")),))
    planted.run(home, "5eeb00000001", made.snapshot, name="lr=1", sweep=sweep)
    assert _completed("show 5e", place) == [sweep.id, "5eeb00000001"]
    assert sweep.id not in _completed("logs ", place) and sweep.id in _completed("resume 5eeb", place)


def test_completion_of_a_bucket_store_sends_no_request(place: Path) -> None:
    # No server has this address. A request would take seconds, and end with an error.
    server = "endpoint_url = 'http://192.0.2.1:9'"
    (place / "m5ws.toml").write_text(f"[store]\nurl = 's3://bucket/prefix'\n{server}\n")
    (place / ".m5ws" / "runs" / "9a0400000000").mkdir(parents=True)
    assert _completed("show ", place) == ["9a0400000000"]
    assert _complete("show 9a04", place).stderr == ""


@pytest.mark.parametrize("fault", ["m5ws.toml", ".m5ws/store/format", ".m5ws/store/index"])
def test_completion_is_silent_on_errors(place: Path, made: Any, fault: str) -> None:
    path = place / fault
    if path.is_dir():
        shutil.rmtree(path)
    path.write_text("= no valid content")
    done = _complete("show ", place)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_without_a_workspace_offers_nothing(tmp_path: Path) -> None:
    assert _completed("show ", tmp_path) == []


# --- init ------------------------------------------------------------------------------------------


def test_init_makes_a_workspace_that_other_verbs_accept(m5: Any, tmp_path: Path) -> None:
    root = tmp_path / "w"
    done = m5("init", root)
    assert done.status == 0
    assert "m5ws.toml" in done.out
    assert "`git init`" in done.err and done.err.endswith(f"next: cd {root}; m5ws run SCRIPT\n")
    assert (root / ".m5ws" / ".gitignore").read_text() == "*\n"
    assert m5("-C", root, "fsck").status == 0


def test_init_in_a_git_repository_adds_only_m5ws_toml(m5: Any, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    commit_all(tmp_path)
    done = m5("-C", tmp_path, "init")
    assert done.status == 0 and "git init" not in done.err
    assert "commit m5ws.toml" in done.err and done.err.endswith("next: m5ws run SCRIPT\n")
    assert git(tmp_path, "status", "--porcelain", "-uall") == "?? m5ws.toml"


def test_init_with_git_commits_its_files_and_refuses_an_existing_repository(m5: Any, tmp_path: Path) -> None:
    done = m5("init", "--git", "--template", "gpt-fsdp", tmp_path / "w", "--json")
    assert done.status == 0 and git(tmp_path / "w", "log", "--format=%H %s") == (
        f"{done.document['commit']} Start from gpt-fsdp"
    )
    assert git(tmp_path / "w", "status", "--porcelain") == ""
    assert m5("init", "--git", tmp_path / "w" / "sub").status == 0 and git(tmp_path / "w" / "sub", "rev-list", "HEAD")
    git(tmp_path, "init", "-q", "other")
    refused = m5("init", "--git", tmp_path / "other")
    assert refused.status == 2 and "git repository" in refused.err
    assert not (tmp_path / "other" / "m5ws.toml").exists()


# --- ui --------------------------------------------------------------------------------------------


def test_ui_as_json_prints_the_url_and_the_command(m5: Any, place: Path) -> None:
    (place / "m5ws.toml").write_text("")
    document = m5("ui", "--port", "5123", "--json").document
    assert document["url"] == "http://127.0.0.1:5123"
    assert f"MLFLOW_BACKEND_STORE_URI=sqlite:///{place}/.m5ws/mlflow.db" in document["command"]
    assert "5123" in document["command"]


def test_ui_names_the_address_of_an_unreachable_server(m5: Any, place: Path) -> None:
    (place / "m5ws.toml").write_text("[mlflow]\ntracking_uri = 'http://127.0.0.1:1/'\n")
    done = m5("ui")
    assert done.status == 3 and "MLflow at http://127.0.0.1:1/" in done.err
