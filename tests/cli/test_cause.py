"""`m5ws cause`: the class of a failure and its rank, from planted logs."""

from pathlib import Path

import msgspec
import pytest

from m5ws.logs.parts import LogParts
from m5ws.records.failure import EndReason, Failure
from m5ws.records.ledger import NODE, AttemptEnded, RankEnded, Stacks
from m5ws.records.stacks import RankStack
from m5ws.repository.repository import Repository
from m5ws.supervision import cases
from tests.cli.conftest import M5, Made
from tests.support.records import planted

ROOT_LINES = "step 3\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
EFFECT_LINES = "step 3\nRuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1\n"


@pytest.fixture
def logs(made: Made, home: Repository, tmp_path: Path) -> Path:
    """The folder of the logs of a second attempt, which has failed. Rank 0 recorded its failure first."""
    planted.begin(home, made.run, 2, host="n7")
    for rank in (0, 1):
        planted.append(home, made.run, 2, str(rank), RankEnded(time_s=9.0 + rank, rank=rank, failure=Failure(text="x")))
    planted.append(home, made.run, 2, NODE, AttemptEnded(time_s=12.0, outcome="failed", exit_code=1))
    folder = tmp_path / "place" / ".m5ws" / "runs" / made.run / "0002" / "logs"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text(EFFECT_LINES)
    (folder / "rank-1.log").write_text(ROOT_LINES)
    (folder / "launcher.log").write_text("")
    return folder


def test_a_failed_run_has_its_class_and_its_rank(m5: M5, made: Made, logs: Path) -> None:
    done = m5("cause", made.run)
    assert (done.status, done.err) == (0, "")
    assert "disk-full: a disk is full" in done.out
    assert "line 3 of the log of rank 1, on h" in done.out
    assert "gloo-connection (1)" in done.out
    assert "OSError: [Errno 28] No space left on device" in done.out
    document = m5("cause", made.run, "--json").document
    cause = document.pop("cause")
    assert document == {"run": made.run, "attempt": 2, "outcome": "failed", "host": "h", "stacks": [], "nodes": []}
    assert (cause["kind"], cause["rank"], cause["line"], cause["level"]) == ("disk-full", "1", 3, "root")
    assert cause["others"] == {"0": "gloo-connection"}
    assert (cause["owner"], cause["retry"]) == ("storage", False)


def test_an_effect_alone_began_elsewhere(m5: M5, made: Made, logs: Path) -> None:
    (logs / "rank-1.log").write_text("step 3\n")
    done = m5("cause", made.run)
    assert "gloo-connection: " in done.out
    assert "began    unknown" in done.out
    assert "line 2 of the log of rank 0" in done.out


def test_a_cause_that_no_rule_matches_is_unknown(m5: M5, made: Made, logs: Path) -> None:
    for log in logs.iterdir():
        log.write_text("step 3\n")
    assert m5("cause", made.run).out.startswith("unknown: ")
    assert m5("cause", made.run, "--json").document["cause"] is None


def test_secrets_and_control_characters_of_a_log_are_not_printed(m5: M5, made: Made, logs: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    (logs / "rank-1.log").write_text(f"\x1b[31mtoken {token}\x1b[0m\x07\n{ROOT_LINES}")
    for done in (m5("cause", made.run), m5("cause", made.run, "--json")):
        assert "disk-full" in done.out
        assert token not in done.out
        assert "\x1b" not in done.out
        assert "\x07" not in done.out


def test_the_store_has_the_logs_of_another_machine(m5: M5, made: Made, home: Repository, logs: Path) -> None:
    LogParts(home, made.run, 2, 0, logs).store(last=True)
    for log in logs.iterdir():
        log.unlink()
    logs.rmdir()
    assert m5("cause", made.run, "--json").document["cause"]["kind"] == "disk-full"


def test_a_finished_attempt_has_no_failure(m5: M5, made: Made) -> None:
    assert m5("cause", made.run).out == f"no failure: attempt 1 of run {made.run} finished\n"
    assert m5("cause", made.run, "--json").document["cause"] is None


def test_an_attempt_without_an_end_has_no_cause_yet(m5: M5, made: Made, home: Repository, logs: Path) -> None:
    planted.begin(home, made.run, 3)
    (logs.parents[1] / "0003" / "logs").mkdir(parents=True)
    assert m5("cause", made.run).out == f"unknown: no rule matches attempt 3 of run {made.run}, which has no end\n"


@pytest.mark.parametrize(("phase", "kind"), [("exit", "disk-full"), ("step", "stuck")])
def test_a_stuck_attempt_has_the_cause_of_a_rank_that_had_failed_and_did_not_end(
    m5: M5, made: Made, home: Repository, logs: Path, phase: str, kind: str
) -> None:
    stack = RankStack(rank=1, host="h", pid=1, step=3, phase=phase, waited_s=9.0, limit_s=5.0, is_late=False)
    reason = EndReason(kind="stuck", rank=1, host="h", problem="no progress")
    ended = AttemptEnded(time_s=13.0, outcome="failed", exit_code=1, reason=reason)
    planted.append(home, made.run, 2, NODE, Stacks(ranks=(stack,)), ended)
    document = m5("cause", made.run, "--json").document
    assert (document["cause"]["kind"], document["cause"]["rank"]) == (kind, "1")
    assert [each["rank"] for each in document["stacks"]] == [1]
    assert m5("cause", "--wrong", made.run, "unknown", "-o", logs / "case.json").status == 0
    assert msgspec.json.decode((logs / "case.json").read_bytes(), type=cases.Case).found == kind


def test_an_attempt_is_chosen_by_its_number(m5: M5, made: Made, logs: Path) -> None:
    assert m5("cause", made.run, "--attempt", "1", "--json").document["outcome"] == "finished"
    missing = m5("cause", made.run, "--attempt", "3")
    assert (missing.status, missing.out) == (3, "")
    assert "has no attempt 3" in missing.err


def test_empty_logs_have_no_cause_and_missing_logs_are_an_error(m5: M5, made: Made, logs: Path) -> None:
    for log in logs.iterdir():
        log.write_text("")
    assert m5("cause", made.run).out.startswith("unknown: ")
    for log in logs.iterdir():
        log.unlink()
    logs.rmdir()
    done = m5("cause", made.run)
    assert (done.status, done.out) == (3, "")
    assert "has no logs of attempt 2" in done.err


def test_a_wrong_class_is_a_case_without_names(m5: M5, made: Made, logs: Path, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    private = f"node h.example.org ada@example.org 192.168.7.9 fe80::1a2b:3c4d {made.run} /home/ada/plan-x/{token}"
    lines = f"{private}\n/home/ada/plan-x/train.py: line 3\nConnection closed by peer [127.0.0.1]:1\n{ROOT_LINES}"
    (logs / "rank-1.log").write_text(lines)
    target = tmp_path / "case.json"
    done = m5("cause", "--wrong", made.run, "disk-quota", "-o", target)
    assert (done.status, done.err) == (0, "")
    assert "as disk-quota instead of disk-full" in done.out
    case = msgspec.json.decode(target.read_bytes(), type=cases.Case)
    assert (case.expected, case.found, case.ended_s) == ("disk-quota", "disk-full", {"0": 0.0, "1": 1.0})
    text = "\n".join(case.logs["1"])
    for name in ("example.org", "ada", "192.168", "fe80", made.run, "plan-x", token):
        assert name not in text
    assert "[127.0.0.1]:1" in text and "/home/user/path-2.py: line 3" in text and ROOT_LINES.strip() in text
    assert "exists" in m5("cause", "--wrong", made.run, "disk-quota", "-o", target).err
    assert "The classes are" in m5("cause", "--wrong", made.run, "diskfull").err
    assert m5("cause", made.run, "disk-quota").status == 2


def test_a_finished_attempt_has_no_wrong_cause(m5: M5, made: Made, tmp_path: Path) -> None:
    done = m5("cause", "--wrong", made.run, "disk-full", "-o", tmp_path / "case.json")
    assert (done.status, done.out) == (2, "")
    assert "attempt 1" in done.err and "finished" in done.err
    assert not (tmp_path / "case.json").exists()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (EndReason(kind="ranks failed", dead={"0": 128 + 11}), "segmentation-fault"),
        (EndReason(kind="ranks failed", dead={"0": -11}), "segmentation-fault"),
        (EndReason(kind="ranks failed", dead={"0": 128 + 9}), None),
        (EndReason(kind="ranks failed", dead={"0": 255}), None),
        (EndReason(kind="loss", rank=0, step=7, problem="the loss is nan at step 7"), "loss"),
    ],
)
def test_the_record_of_the_end_has_its_class(
    m5: M5, made: Made, home: Repository, logs: Path, reason: EndReason, kind: str | None
) -> None:
    for log in logs.iterdir():
        log.write_text("step 3\n")
    planted.append(home, made.run, 2, NODE, AttemptEnded(time_s=13.0, outcome="failed", exit_code=1, reason=reason))
    cause = m5("cause", made.run, "--json").document["cause"]
    assert (cause and cause["kind"]) == kind
    assert kind != "loss" or cause["evidence"] == ["the loss is nan at step 7"]
