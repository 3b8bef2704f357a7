"""The command line itself: its imports, errors and completion."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from m5ws.cli import COMMANDS, cli
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
    shown = ["show", made.run]
    verbs = (["ls"], ["diff", made.snapshot, made.changed], ["fsck"], ["ls", "--json"], ["snapshot"], shown)
    assert not _loaded(*(["-C", str(place), *words] for words in verbs)) & set(HEAVY)


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


def test_completion_offers_verbs_runs_and_options_without_a_request(place: Path) -> None:
    # No server has this address. A request would take seconds, and end with an error.
    server = "endpoint_url = 'http://192.0.2.1:9'"
    (place / "m5ws.toml").write_text(f"[store]\nurl = 's3://bucket/prefix'\n{server}\n")
    for run in ("9a0400000000", "7c1d00000000"):
        (place / ".m5ws" / "runs" / run).mkdir(parents=True)
    assert _completed("sn", place) == ["snapshot"]
    assert _completed("show --env", place) == ["--environment"]
    assert _completed("reproduce ", place) == ["7c1d00000000", "9a0400000000"]
    assert _completed("show 9A04", place) == ["9a0400000000"]
    assert _completed("reproduce 9a04 --snapshot ", place) == []


def test_the_script_of_a_shell_is_printed(tmp_path: Path) -> None:
    done = _run(env=os.environ | {"_M5WS_COMPLETE": "zsh_source"})
    assert done.returncode == 0 and done.stdout.startswith("#compdef m5ws\n")


def test_completion_is_silent_on_errors(place: Path) -> None:
    (place / "m5ws.toml").write_text("= no valid content")
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


# --- ui --------------------------------------------------------------------------------------------


def test_ui_as_json_prints_the_url_and_the_command(m5: Any, place: Path) -> None:
    (place / "m5ws.toml").write_text("")
    document = m5("ui", "--port", "5123", "--json").document
    assert document["url"] == "http://127.0.0.1:5123"
    assert f"MLFLOW_BACKEND_STORE_URI=sqlite:///{place}/.m5ws/mlflow/mlflow.db" in document["command"]
    assert "5123" in document["command"]


def test_ui_names_the_address_of_an_unreachable_server(m5: Any, place: Path) -> None:
    (place / "m5ws.toml").write_text("[mlflow]\ntracking_uri = 'http://127.0.0.1:1/'\n")
    done = m5("ui")
    assert done.status == 3 and "MLflow at http://127.0.0.1:1/" in done.err
