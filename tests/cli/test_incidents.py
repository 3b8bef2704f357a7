"""A failed run as people see it: its incident in `show` and `report`, messages, user rules, and looks by a timer."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.records.failure import EndReason
from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.repository.references import incidents
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.network import webhook
from tests.support.network.webhook import Webhook
from tests.support.paths import ROOT
from tests.support.ranks.forks import ForkParents
from tests.support.records import planted
from tests.support.workspace import command_line
from tests.support.workspace.checkouts import commit_all

TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
_SETTINGS = """[mlflow]
enabled = false
[run]
command = ['train.py']

[notify]
urls = ["${HOOK}"]
on = ["failed", "finished"]

[causes.lake-token]
title = "the token of the lake has expired"
patterns = ["LakeTokenExpired"]
advice = "Log in again."
owner = "user"
retry = false
"""
_SCRIPT = "raise RuntimeError('LakeTokenExpired ' + 'ghp_' + 'a1B2c3D4e5F6' * 3)\n"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    with webhook.running() as server:
        monkeypatch.setenv("HOOK", server.url)
        yield server


@pytest.fixture
def _forked_ranks(fork_parents: ForkParents) -> Iterator[None]:
    with command_line.forked_ranks(fork_parents):
        yield


@pytest.mark.usefixtures("_forked_ranks")
def test_a_failure_is_recorded_remembered_and_sent_without_its_secrets(m5: M5, place: Path, hook: Webhook) -> None:
    (place / "m5ws.toml").write_text(_SETTINGS)
    (place / "train.py").write_text(_SCRIPT)
    commit_all(place)
    environment = command_line.inherited() | {"HOOK": hook.url}
    done = command_line.call("-C", str(place), "run", "--name", "trial", environment=environment)
    assert done.returncode == 1
    run = done.stdout.strip()
    shown = m5("show", run).out
    assert re.search(r"cause: lake-token: the token of the lake has expired \(rank 0, .+\)\n +Log in again\.", shown)
    (message,) = hook.received
    assert re.fullmatch(rf"run {run} trial failed \(attempt 1, step 0\)", message["title"])
    for text in (
        "lake-token",
        "Log in again. Owner: user. A restart does not help.",
        "train.py:1",
        f"m5ws cause {run}",
    ):
        assert text in message["message"]
    hook.status = 503
    assert command_line.call("-C", str(place), "resume", run, "--from-scratch", environment=environment).returncode == 1
    assert f"The 2nd such failure at train.py:1, after run {run}, attempt 1." in m5("show", run).out
    assert m5("show", run, "--json").document["incident"]["attempt"] == 2
    page = place.parent / "page.html"
    assert m5("report", run, "-o", page).status == 0
    assert "the token of the lake has expired" in page.read_text()
    assert m5("push", run, "--to", str(place.parent / "copy")).status == 0
    assert len(list((place.parent / "copy" / "incidents" / run).iterdir())) == 2
    assert m5("notify").status == 1
    hook.status = 200
    assert m5("notify", "--json").document == {"sent": 1, "waiting": 0}
    assert "The 2nd lake-token on" in hook.received[1]["message"]
    stored = "".join(
        path.read_text("latin-1") for path in (place / ".m5ws/store/incidents").rglob("*") if path.is_file()
    )
    for text in (shown, page.read_text(), json.dumps(hook.received), stored):
        assert TOKEN not in text


def test_a_test_message_arrives_and_a_workspace_without_a_target_has_an_error(
    m5: M5, place: Path, hook: Webhook
) -> None:
    assert m5("notify", "--test").status == 2
    (place / "m5ws.toml").write_text(_SETTINGS)
    assert m5("notify", "--test").out == "sent 1, waiting 0\n"
    assert hook.received[0]["title"] == "test message of the workspace place"


@pytest.fixture
def silent(home: Repository, place: Path) -> str:
    """A run that goes on, whose newest batch is an hour old."""
    (place / "m5ws.toml").write_text(_SETTINGS)
    planted.run(home, "7c1d00000005", name="long")
    planted.begin(home, "7c1d00000005")
    for path in (place / ".m5ws/store/runs/7c1d00000005/ledger").rglob("*"):
        os.utime(path, (path.stat().st_atime - 3600, path.stat().st_mtime - 3600))
    return "7c1d00000005"


def test_a_look_by_a_timer_reports_a_silent_run_once(m5: M5, silent: str, home: Repository, hook: Webhook) -> None:
    ping = hook.url.replace("json://", "http://")
    for _ in range(2):
        done = m5("watch", "--unattended", silent, "--ping", ping)
        assert (done.status, done.err) == (1, "")
        assert re.search(r"running, step 0, last event 1h 0\dm ago \(dead\)", done.out)
    assert [body["title"] for body in hook.received] == [f"run {silent} long failed (attempt 1)"]
    assert hook.asked == 1, "the address is not fetched"
    assert m5("watch", "--unattended", silent, "--limit", "120", "--ping", ping).status == 0
    assert hook.asked == 2
    planted.append(home, silent, 1, NODE, AttemptEnded(outcome="finished", exit_code=0))
    assert m5("watch", "--unattended", silent).status == 0


def test_a_failed_end_without_an_incident_gets_it_from_the_next_look_with_a_message_once(
    m5: M5, silent: str, home: Repository, hook: Webhook
) -> None:
    reason = EndReason(kind="supervisor killed")
    planted.append(home, silent, 1, NODE, AttemptEnded(time_s=9.0, outcome="failed", exit_code=1, reason=reason))
    for _ in range(2):
        (sign,) = m5("watch", "--unattended", silent, "--json").document
        assert (sign["standing"], sign["is_dead"], sign["silent_s"]) == ("failed", True, None)
    (message,) = hook.received
    assert "the supervisor was killed" in message["message"]
    assert [incident.attempt for incident in incidents.newest(home, 9)] == [1]
    planted.begin(home, silent, 2)
    planted.append(home, silent, 2, NODE, AttemptEnded(outcome="failed", exit_code=1))
    for _ in range(2):
        assert m5("watch", "--unattended", silent).status == 1
    assert [body["title"] for body in hook.received[1:]] == [f"run {silent} long failed (attempt 2, step 0)"]
    planted.begin(home, silent, 3)
    planted.append(home, silent, 3, NODE, AttemptEnded(outcome="interrupted", exit_code=130))
    assert m5("watch", "--unattended", silent).status == 1
    assert len(hook.received) == 2


def test_a_silent_run_that_is_found_killed_later_has_one_message(
    m5: M5, silent: str, home: Repository, hook: Webhook
) -> None:
    m5("watch", "--unattended", silent)
    reason = EndReason(kind="supervisor killed")
    planted.append(home, silent, 1, NODE, AttemptEnded(time_s=9.0, outcome="failed", exit_code=1, reason=reason))
    m5("watch", "--unattended", silent)
    assert len(hook.received) == 1
    assert [incident.attempt for incident in incidents.newest(home, 9)] == [1]


def test_a_look_leaves_a_new_failure_to_its_leader(m5: M5, silent: str, home: Repository, hook: Webhook) -> None:
    now_s = home.store.now()
    planted.append(home, silent, 1, NODE, AttemptEnded(time_s=now_s - 60, outcome="failed", exit_code=1))
    assert m5("watch", "--unattended", silent).status == 1
    assert (hook.received, incidents.newest(home, 9)) == ([], [])


def test_the_end_of_an_attempt_without_its_supervisor_is_unknown(m5: M5, made: Made, home: Repository) -> None:
    for attempt, kind in ((2, "supervisor killed"), (3, "status")):
        reason = EndReason(kind=kind, status=1)  # type: ignore[arg-type]
        planted.begin(home, made.run, attempt, time_s=5.0)
        ended = AttemptEnded(time_s=9.0, outcome="failed", exit_code=1, reason=reason)
        planted.append(home, made.run, attempt, NODE, ended)
    shown = m5("show", made.run).out
    assert "attempt 2: failed, last event after 4s, step 0" in shown
    assert "attempt 3: failed after 4s, step 0" in shown
    assert m5("show", made.run, "--json").document["state"]["attempts"][1]["ended_s"] is None


def test_a_test_message_without_its_variable_is_one_error_and_never_waits(
    m5: M5, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "m5ws.toml").write_text(_SETTINGS)
    monkeypatch.delenv("HOOK", raising=False)
    done = m5("notify", "--test")
    assert (done.status, done.out) == (1, "sent 0, waiting 0\n")
    assert done.err == "error: the variable HOOK of [notify] urls is not set\n"
    assert m5("notify", "--json").document == {"sent": 0, "waiting": 0}


def test_a_look_ends_well_without_its_outbox_and_its_address(m5: M5, silent: str, place: Path) -> None:
    (place / ".m5ws/notify").write_text("no folder")
    done = m5("watch", "--unattended", silent)
    assert (done.status, "cannot send the message" in done.err, "(dead)" in done.out) == (1, True, True)
    for address in ("http://a b/", "http://[/", "http://\u00e4\u2603" + "x" * 70):
        done = m5("watch", "--unattended", silent, "--limit", "120", "--ping", address)
        assert (done.status, "--ping was not answered" in done.err) == (0, True)


def test_an_address_and_several_runs_belong_to_a_look(m5: M5, silent: str) -> None:
    assert m5("watch", silent, silent).status == 2
    assert m5("watch", "--unattended", silent, "--ping", "file:///etc/passwd").status == 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_the_documented_units_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    page = (ROOT / "docs" / "how-to" / "get-messages.md").read_text()
    units = re.findall(r"```ini\n# (\S+)\n(.*?)```", page, re.DOTALL)
    for name, text in units:
        (tmp_path / name).write_text(text.replace("%h/.local/bin/m5ws", "/bin/true"))
    paths = [str(tmp_path / name) for name, _ in units]
    done = subprocess.run(["systemd-analyze", "verify", "--user", *paths], capture_output=True, text=True, check=False)
    assert (len(units), done.returncode, done.stderr) == (2, 0, "")
