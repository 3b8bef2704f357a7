"""run and reproduce with real processes, as a user types them: output on each stream, and the exit status."""

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from m5ws.cli.terminal import interrupt
from m5ws.launch import reaper
from m5ws.records.failure import EndReason
from m5ws.repository.files import trees
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.runs import state
from tests.support.ranks.forks import ForkParents
from tests.support.records import planted
from tests.support.waiting import wait_for
from tests.support.workspace import command_line
from tests.support.workspace.checkouts import write

_LIMIT_S = 120.0


def _pin(repo: Repository, place: Path, script: str) -> str:
    """Publish a snapshot of the workspace with `script` as its train.py."""
    code = planted.tree(repo, place, {"train.py": script})
    config = trees.write_tree(repo.objects, planted.sources(place, ["config.yaml"])).digest
    return planted.publish(repo, planted.snapshot(code, dirty=True, config=config))


@pytest.fixture(autouse=True)
def _forked_ranks(fork_parents: ForkParents) -> Iterator[None]:
    with command_line.forked_ranks(fork_parents):
        yield


def _here(place: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Call the command line in this process, with ranks that are forks."""
    return command_line.call("-C", str(place), *words, environment=variables)


def _m5(place: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "m5ws", "-C", str(place), *words]
    environment = os.environ | variables
    return subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env=environment)


_WRITES = """
import pathlib, sys
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out", "config").write_text(open("config.yaml").read())
print("trained with", *sys.argv[1:])
"""
_OUTPUTS = "[run]\noutputs = ['out']\n[mlflow]\nenabled = false\n"


def test_reproduce_confirms_an_equal_replay_and_names_the_changes_of_other_replays(
    home: Repository, place: Path
) -> None:
    (place / "m5ws.toml").write_text(_OUTPUTS)
    snapshot = _pin(home, place, _WRITES)
    done = _m5(place, "run", snapshot[:10], "--name", "trial", "--", "train.py", "--lr", "1")
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    creator = (pwd.getpwuid(os.getuid()).pw_name, socket.gethostname())
    assert (runs.load(home, run).user, runs.load(home, run).host) == creator
    assert f" by {creator[0]} on {creator[1]}\n" in _here(place, "show", run).stdout
    assert f"`m5ws reproduce {run}`" in done.stderr and "trained with --lr 1\n" in done.stderr
    assert _here(place, "logs", run).stdout == "trained with --lr 1\n"

    again = _here(place, "reproduce", run[:6])
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(f"REPRODUCED: run {run}, replayed as ")
    assert "environment: the same" in again.stderr

    changed = _here(place, "reproduce", run, "--set", "config.yaml:lr=0.5", "--json")
    assert changed.returncode == 1, changed.stderr
    verdict = json.loads(changed.stdout)
    assert verdict["outcome"] == "diverged"
    assert [(one["part"], one["name"]) for one in verdict["changes"]] == [("config", "lr")]
    refused = _here(place, "reproduce", run, "--set", "lr=0.5")
    assert refused.returncode == 2 and "--set command:lr=0.5 or --set config.yaml:lr=0.5" in refused.stderr
    refused = _here(place, "reproduce", run, "--", "train.py", "--lr", "2")
    assert refused.returncode == 2 and "`--set command:NAME=VALUE` changes an argument" in refused.stderr
    changed = _here(place, "reproduce", run, "--set", "command:lr=2", "--json")
    assert [(one["part"], one["name"]) for one in json.loads(changed.stdout)["changes"]] == [("argument", "lr")]


def test_run_without_a_snapshot_takes_a_snapshot_with_the_overrides(place: Path) -> None:
    (place / "m5ws.toml").write_text("[run]\ncommand = ['train.py']\n[mlflow]\nenabled = false\n")
    (place / "train.py").write_text("print(open('config.yaml').read())\n")
    done = _here(place, "run", "--set", "lr=0.25", "-m", "on the spot", "--why", "a higher rate")
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    (note,) = json.loads(_here(place, "show", run, "--json").stdout)["notes"]
    assert (note["kind"], note["text"]) == ("why", "a higher rate")
    assert "lr: 0.25" in _here(place, "logs", run).stdout
    rows = json.loads(_here(place, "ls", "--json").stdout)
    taken = next(row for row in rows["snapshots"] if row["message"] == "on the spot")
    derived = next(row for row in rows["snapshots"] if row["id"] == rows["runs"][0]["snapshot"])
    assert derived["derived_from"] == taken["id"]
    refused = _here(place, "resume", run, "--set", "lr=1")
    assert refused.returncode == 2 and "No such option '--set'" in refused.stderr


def test_stored_output_files_leave_the_work_directory_of_a_finished_run(home: Repository, place: Path) -> None:
    (place / "m5ws.toml").write_text(_OUTPUTS)
    snapshot = _pin(home, place, _WRITES)
    for setting, left in (("", []), ("keep_work = true\n", ["out/config"])):
        (place / "m5ws.toml").write_text(_OUTPUTS.replace("[mlflow]", f"{setting}[mlflow]"))
        done = _here(place, "run", snapshot, "--", "train.py")
        assert done.returncode == 0, done.stderr
        work = place / ".m5ws" / "runs" / done.stdout.strip() / "0001" / "work"
        assert [str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()] == left
        assert (str(work) in done.stderr) == bool(left)
    planned = json.loads(_here(place, "gc", "--older-than", "0s", "--dry-run", "--json").stdout)
    assert planned["work"]["files"] == 1
    assert "1 files" in _here(place, "gc", "--older-than", "0s").stdout
    assert not work.exists()
    fetched = place.parent / "fetched"
    assert _here(place, "outputs", done.stdout.strip(), str(fetched)).returncode == 0
    assert (fetched / "out" / "config").exists()


def test_a_failed_script_exits_with_1_and_prints_a_hint_to_its_log(home: Repository, place: Path) -> None:
    snapshot = _pin(home, place, "raise SystemExit('no data')\n")
    done = _here(place, "run", snapshot, "--json", "--", "train.py")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    run = document["run"]["id"]
    assert "no data\n" in done.stderr.partition(f"run {run} failed")[0]
    assert document["result"]["outcome"] == "failed"
    assert f"run {run} failed" in done.stderr
    assert f"hint: `m5ws cause {run}` names the cause, and `m5ws logs {run}`" in done.stderr
    assert "no data" in _here(place, "logs", run).stdout


@pytest.mark.parametrize(
    ("words", "number"),
    [(("--nproc", "2"), signal.SIGSEGV), (("--nproc", "2"), signal.SIGKILL), (("--trainer", "python"), signal.SIGKILL)],
    ids=lambda value: value[1] if isinstance(value, tuple) else value.name,
)
def test_a_rank_that_dies_is_named_before_the_errors_that_follow(
    home: Repository, place: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    script = f"""
import os, torch, torch.distributed as dist
last = int(os.environ.get("WORLD_SIZE", "1")) - 1
if last:
    dist.init_process_group("gloo")
    dist.barrier()
if int(os.environ.get("RANK", "0")) == last:
    os.kill(os.getpid(), {int(number)})
dist.all_reduce(torch.ones(1))
"""
    done = _here(place, "run", _pin(home, place, script), "--json", *words, "--", "train.py")
    message = json.loads(done.stdout)["result"]["reason"]["sentence"]
    assert message.startswith(f"rank {int(words[0] == '--nproc')} ") and number.name in message
    assert ("memory" in message) == (number == signal.SIGKILL)


def test_secrets_in_logs_errors_and_output_files_are_masked(home: Repository, place: Path) -> None:
    secret = "hf" + "_" + "QwErTyUiOpAsDfGhJkLzXcVbNm12345678"
    key = "-----BEGIN PRIVATE " + "KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n" * 3
    key += "-----END PRIVATE " + "KEY-----\n"
    (place / "m5ws.toml").write_text("[run]\noutputs = ['out']\n[mlflow]\nenabled = false\n")
    script = f"""
import os, pathlib
secret = {secret[::-1]!r}[::-1]
key = {key[::-1]!r}[::-1]
print("using", secret)
print(key)
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out", "train.log").write_text(f"step 1\\nlogin with {{secret}}\\n" * 3)
pathlib.Path("out", "other.log").write_text("step 1\\n")
os.symlink("/nowhere/" + secret, "out/link")
raise RuntimeError(f"cannot log in with {{secret}}")
"""
    done = _here(place, "run", _pin(home, place, script), "--json", "--", "train.py")
    run = json.loads(done.stdout)["run"]["id"]
    logs = place / ".m5ws" / "runs" / run / "0001" / "logs"
    assert secret in (logs / "rank-0.log").read_text()
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in logs.glob("*.log")} == {
        "launcher.log": "0o600",
        "rank-0.log": "0o600",
    }
    for words in (("logs", run), ("logs", run, "--json"), ("show", run), ("show", run, "--json")):
        printed = _here(place, *words).stdout
        assert secret not in printed and "MIIEvQ" not in printed, words
        assert "***" in printed
    _here(place, "outputs", run, str(place / "fetched"))
    assert (place / "fetched" / "out" / "train.log").read_text() == "step 1\nlogin with ***\n" * 3
    assert (place / "fetched" / "out" / "other.log").read_text() == "step 1\n"
    stored = {stat.key: home.store.get(stat.key) for stat in home.store.list("")}
    assert [key for key, data in stored.items() if secret.encode() in data] == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_run_that_gets_a_signal_is_interrupted_cleanly(home: Repository, place: Path, number: int) -> None:
    snapshot = _pin(home, place, "import time\nprint('ready')\ntime.sleep(600)\n")
    with _started(place, snapshot) as (process, run):
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 130, said
    assert f"`m5ws resume {run} --from-scratch`" in said
    (row,) = json.loads(_m5(place, "ls", "--runs", "--json").stdout)["runs"]
    assert row["standing"] == "interrupted"
    assert _m5(place, "fsck").returncode == 0


_STOPPED_AT_EXIT = """
import atexit, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
time.sleep(2)
print("saved")
stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
atexit.register(lambda: [signal.raise_signal(number) for number in stops])
"""


@pytest.mark.long
def test_scheduler_signals_to_all_processes_kill_neither_torchrun_nor_a_rank_that_ends(
    home: Repository, place: Path
) -> None:
    snapshot = _pin(home, place, _STOPPED_AT_EXIT)
    with _started(place, snapshot, "--trainer", "torchrun") as (process, run):
        for pid in reaper.descendants(process.pid):
            if " -I " not in reaper.command_line(pid):
                os.kill(pid, signal.SIGUSR2)
        _, said = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 0 and "saved" in _log(place, run), said


def test_a_dry_run_prints_the_launch_and_writes_no_run(home: Repository, place: Path) -> None:
    snapshot = _pin(home, place, "print('x')\n")
    before = sorted((place / ".m5ws").rglob("*"))
    done = _here(place, "run", snapshot, "--dry-run", "--nproc", "3", "--", "train.py", "--set", "x")
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node 3 -m m5ws.training.rank train.py --set x" in done.stdout
    assert "OMP_NUM_THREADS=1" in done.stdout
    plan = json.loads(_here(place, "run", snapshot, "--dry-run", "--json", "--", "train.py").stdout)
    assert plan["run"]["snapshot"] == snapshot and plan["attempt"] == 1
    assert sorted((place / ".m5ws").rglob("*")) == before


def _log(place: Path, run: str) -> str:
    path = place / ".m5ws" / "runs" / run / "0001" / "logs" / "rank-0.log"
    return path.read_text() if path.exists() else ""


@contextmanager
def _started(place: Path, snapshot: str, *options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start `m5ws run` as users do, and wait until the script has printed `ready`."""
    argv = [sys.executable, "-m", "m5ws", "-C", str(place), "run", snapshot, *options, "--", "train.py"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        wait_for(lambda: "ready" in _log(place, run) or process.poll() is not None)
        yield process, run


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "--lr", "1"),
        ("--", "python", "-u", "train.py", "--lr", "1"),
        ("python", "train.py", "--lr", "1"),
        ("composer", "-n", "1", "train.py", "--lr", "1"),
        ("--", "accelerate", "launch", "--config_file", "conf/launch.yaml", "train.py", "--lr", "1"),
    ],
    ids=lambda words: words[1],
)
def test_a_command_is_recorded_as_typed(place: Path, words: tuple[str, ...]) -> None:
    write(place, {"train.py": "", "conf/launch.yaml": "distributed_type: 'NO'\n", ".gitignore": "conf\n"})
    planned = command_line.call("-C", str(place), "run", "--dry-run", "--json", *words)
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert plan["run"]["spec"]["command"] == [word for word in words if word != "--"]
    assert " ".join(plan["request"]["argv"]).endswith("m5ws.training.rank train.py --lr 1")


@pytest.mark.long
def test_any_other_program_runs_as_one_process_with_log_and_exit_status(home: Repository, place: Path) -> None:
    (place / "m5ws.toml").write_text("[run]\noutputs = ['out']\n[mlflow]\nenabled = false\n")
    session = """
import torch, m5ws
model = torch.nn.Linear(1, 1)
m5ws.session(model, torch.optim.SGD(model.parameters()), total_steps=1)
"""
    lines = ["mkdir -p out", "echo $1 > out/result.txt", f"{sys.executable} session.py", "exit $2"]
    write(place, {"run.sh": "\n".join(lines), "session.py": session})
    for status in (0, 7):
        done = _here(place, "run", "--json", "bash", "run.sh", "42", str(status))
        document = json.loads(done.stdout)
        run, result = document["run"]["id"], document["result"]
        assert result["outcome"] == ("failed" if status else "finished")
        assert status == 0 or "exit status 7" in result["reason"]["sentence"]
        assert "m5ws run -- python session.py" in _log(place, run)
        _here(place, "outputs", run, str(place / f"fetched-{status}"))
        assert (place / f"fetched-{status}" / "out" / "result.txt").read_text() == "42\n"


def test_a_launcher_that_starts_no_script_begins_no_run(home: Repository, place: Path) -> None:
    write(place, {"train": "print('not a rank')\n", "args.py": ""})
    before = runs.ids(home)
    done = _here(place, "run", "--json", "--", "python", "train", "args.py")
    assert done.returncode == 2 and runs.ids(home) == before
    assert "`python` ended with status 0 before the script began:\nnot a rank\n" in done.stderr


def test_a_signal_that_nohup_ignores_interrupts_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupt.on_signals():
        os.kill(os.getpid(), signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt, match="SIGHUP"), interrupt.on_signals():
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.long
@pytest.mark.parametrize("name", ["SIGUSR1", pytest.param("SIGHUP", marks=pytest.mark.soak)])
def test_each_signal_of_a_scheduler_stops_a_run_and_is_named(home: Repository, place: Path, name: str) -> None:
    snapshot = _pin(home, place, "import time\nprint('ready')\ntime.sleep(600)\n")
    with _started(place, snapshot) as (process, run):
        os.kill(process.pid, getattr(signal, name))
        _, said = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 130, said
    [attempt] = state.load(home, run).attempts
    assert (attempt.standing, attempt.reason) == ("interrupted", EndReason(kind="stopped", signal=name))
