"""An agent of a job that cannot begin: the agents of other nodes learn it from the store, and do not wait."""

import re
from pathlib import Path

import msgspec
import pytest

from m5ws.config.settings import Settings
from m5ws.records.job import Job
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made

_MASTER = "127.0.0.1:29000"


def _settings(repo: Repository) -> Settings:
    clusters = {"lab": {"engine": "hosts", "hosts": ["127.0.0.1"]}}
    return msgspec.convert({"store": {"url": repo.store.url}, "clusters": clusters}, Settings)


@pytest.fixture
def job(home: Repository, made: Made) -> Job:
    name, settings = jobs.new_name(made.run), msgspec.json.encode(_settings(home)).decode()
    planned = Job(
        run=made.run, name=name, cluster="lab", engine="hosts", nodes=2, settings=settings, script="", created_s=1.0
    )
    return jobs.publish(home, planned)


def _place(monkeypatch: pytest.MonkeyPatch, node: int) -> None:
    for name, value in {"NODE": str(node), "NODES": "2", "MASTER": _MASTER, "JOB": "7"}.items():
        monkeypatch.setenv(f"M5WS_{name}", value)


def test_an_agent_that_cannot_begin_cancels_its_job_with_the_reason(
    m5: M5, home: Repository, job: Job, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("agent", job.run, "--store", home.store.url, "--job", job.name, "--scratch")
    (tmp_path / "file").write_text("")
    _place(monkeypatch, 1)
    failed = m5(*words, tmp_path / "file" / "scratch")
    assert failed.status not in (0, 75, 130) and str(tmp_path / "file") in failed.err
    [request] = jobs.cancels(home, job.run)
    assert (request.attempt, request.jobs) == (0, (job.name,))
    assert request.problem and str(tmp_path / "file") in request.problem
    _place(monkeypatch, 0)
    other = m5(*words, tmp_path / "scratch")
    assert other.status == 130 and f"was cancelled from {request.host}: {request.problem}" in other.err
    with (place / "m5ws.toml").open("a") as settings:
        settings.write('\n[clusters.lab]\nengine = "hosts"\nhosts = ["127.0.0.1"]\n')
    assert re.search(rf"cancelled +\S+ .*from {request.host}: ", m5("show", job.run).out)


def test_a_check_of_a_machine_names_the_store_that_it_does_not_have(
    m5: M5, home: Repository, made: Made, tmp_path: Path
) -> None:
    words = ("agent", made.run, "--job", "j", "--scratch", tmp_path / "scratch", "--check", "--store")
    assert m5(*words, home.store.url).status == 0
    assert "--check requires them" in m5("agent", made.run, "--check").err
    absent = m5(*words, tmp_path / "absent")
    assert absent.status != 0 and f"no m5ws store at {tmp_path / 'absent'}" in absent.err
    (tmp_path / "file").write_text("")
    assert m5(*words, home.store.url, "--scratch", tmp_path / "file" / "scratch").status != 0
