"""Memory across runs: earlier incidents of one class on one host, or at one line of code, and the end of the last."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from m5ws.records.cause import Cause
from m5ws.records.environment import Observed
from m5ws.records.failure import EndReason, Failure
from m5ws.records.incident import Incident
from m5ws.records.job import Job
from m5ws.records.ledger import NODE, AttemptEnded, AttemptStarted, NodeStarted
from m5ws.repository import reindex
from m5ws.repository.references import incidents, runs
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.supervision import memory, messages
from tests.support.records import planted

_DAY_S = 86_400.0
_NOW_S = 100 * _DAY_S
CAUSE = Cause(
    kind="gpu-lost", level="root", title="a GPU is lost", owner="infrastructure", retry=True, advice="Drain the node.",
    rank="3", line=1, evidence=("Xid 79",), others={},
)  # fmt: skip

Fail = Callable[..., Incident]


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


@pytest.fixture
def fail(repo: Repository) -> Fail:
    """Publish an incident of a new run, some days ago, with an attempt in an environment."""

    def publish(run: str, days: float, nccl: str = "2.27.3", **fields: object) -> Incident:
        observed = repo.objects.put_record(Observed(facts={"nccl": nccl}, distributions={}))
        time_s = _NOW_S - days * _DAY_S
        planted.run(repo, run, created_s=time_s - 60)
        planted.begin(repo, run)
        incident = Incident(
            run=run, attempt=1, time_s=time_s, outcome="failed", step=5, cause=CAUSE, host="n17", environment=observed
        )
        return incidents.publish(repo, msgspec.structs.replace(incident, **fields))

    return publish


def _finish(repo: Repository, run: str, days: float, nccl: str, host: str) -> None:
    planted.run(repo, run, created_s=_NOW_S - days * _DAY_S)
    observed = repo.objects.put_record(Observed(facts={"nccl": nccl}, distributions={}))
    begin = (AttemptStarted(attempt=1, host=host), NodeStarted(node=0, host=host, observed=observed))
    planted.append(repo, run, 1, NODE, *begin, AttemptEnded(outcome="finished", exit_code=0))
    reindex.fill(repo)


def test_incidents_of_one_class_on_one_host_are_counted(repo: Repository, fail: Fail) -> None:
    assert memory.recall(repo, fail("a" * 12, 40)) == ()
    fail("b" * 12, 20)
    fail("c" * 12, 10)
    fail("d" * 12, 5, host="n18")
    fail("e" * 12, 4, cause=msgspec.structs.replace(CAUSE, kind="disk-full"))
    fail("1" * 12, 3, cause=None)
    assert memory.recall(repo, fail("f" * 12, 0)) == ("The 3rd gpu-lost on n17 in 20 days.",)


def test_the_change_before_the_first_later_success_on_the_host_is_named(repo: Repository, fail: Fail) -> None:
    fail("a" * 12, 20)
    fail("b" * 12, 18)
    _finish(repo, "c" * 12, 17, "2.27.5", "n18")
    new = fail("d" * 12, 0)
    assert memory.recall(repo, new) == ("The 3rd gpu-lost on n17 in 20 days.",)
    _finish(repo, "e" * 12, 16, "2.27.5", "n17")
    sentence = f"After the last of them, run {'e' * 12} finished there with nccl: 2.27.3 → 2.27.5."
    assert memory.recall(repo, new)[1:] == (sentence,)


def test_failures_at_one_line_of_code_are_counted_also_without_a_class(repo: Repository, fail: Fail) -> None:
    reason = EndReason(kind="ranks failed", failure=Failure(type="ValueError", text="no", place="train.py:88"))
    fail("a" * 12, 90, cause=None, host=None, reason=reason)
    fail("b" * 12, 80, cause=None, host=None)
    new = fail("c" * 12, 0, cause=None, host=None, reason=reason)
    assert memory.recall(repo, new) == (f"The 2nd such failure at train.py:88, after run {'a' * 12}, attempt 1.",)


@pytest.mark.parametrize(
    ("engine", "owner", "text"),
    [
        ("slurm", "infrastructure", 'To leave out n17, add "--exclude=n17" to directives in [clusters.big]'),
        ("hosts", "infrastructure", "To leave out n17, remove it from hosts in [clusters.big]"),
        ("slurm", "user", None),
    ],
)
def test_a_message_has_the_way_to_leave_out_a_host_to_blame(
    repo: Repository, fail: Fail, engine: Literal["slurm", "hosts"], owner: str, text: str | None
) -> None:
    incident = fail("7c1d00000001", 0.0, cause=msgspec.structs.replace(CAUSE, owner=owner))
    job = Job(
        run=incident.run, name="j", cluster="big", engine=engine, nodes=2, settings="", script="", created_s=0.0
    )  # fmt: skip
    run = runs.load(repo, incident.run)
    shown = messages.describe("failed", run, 1, None, incident, job=job).text
    assert ("leave out" in shown) == (text is not None)
    assert text is None or f"{text}, and start again by `m5ws resume {incident.run} --on big`." in shown
    assert "leave out" not in messages.describe("failed", run, 1, None, incident).text
