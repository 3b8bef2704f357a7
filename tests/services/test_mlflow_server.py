"""Runs on a real MLflow server on PostgreSQL, behind its own passwords and TLS, in outages and by `m5ws sync`.

Each page equals the page of an undisturbed run on SQLite, field by field and metric by metric.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from requests import RequestException

from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.tracking.mlflow import process
from m5ws.tracking.mlflow.client import TrackerError
from m5ws.tracking.mlflow.follower import Follower, limit_requests
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.conftest import loud_skip
from tests.support.campaigns import soak_page
from tests.support.machine import mlflow_server, postgres
from tests.support.network.gate import PASSWORD, USER, Gate
from tests.support.records import mlflow_runs as written
from tests.support.records.mlflow_pages import page_content

pytestmark = pytest.mark.services

_PARTS = (range(1, 61), range(61, 181), range(181, 361))
_SHORT = (range(1, 5), range(5, 13), range(13, 25))
_WORDS = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=127.0.0.1")


class _Site(msgspec.Struct):
    """A server, a store, an MLflow on SQLite, and the content of the page of an undisturbed run there."""

    gate: Gate
    repo: Repository
    snapshot: str
    tracker: Mlflow
    embedded: Mlflow
    whole: Any = None

    def begin(self) -> Run:
        run = written.publish_run(self.repo, self.snapshot, created_s=1.7e9)
        written.begin(self.repo, run)
        return run

    def train(self, run: Run, part: range) -> None:
        written.train(self.repo, run, part)
        written.checkpoint(self.repo, run, part[-1])

    def run(self, parts: Sequence[range] = _PARTS) -> Run:
        run = self.begin()
        for part in parts:
            self.train(run, part)
        written.end(self.repo, run)
        return run

    def undisturbed(self, parts: Sequence[range]) -> Any:
        """Return the content of the page of an undisturbed run."""
        run = self.run(parts)
        Follower(self.embedded.options(run.id, once=True)).advance(last=True)
        return self.content(run, self.embedded)

    def content(self, run: Run, tracker: Mlflow | None = None) -> Any:
        return page_content(MlflowClient((tracker or self.tracker).tracking_uri), run)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """TLS before `mlflow server --app-name basic-auth` on PostgreSQL, with the variables of a client.

    The server keeps the result of its check of a password, which takes 0.2 CPU seconds.
    """
    if (programs := postgres.programs()) is None:
        loud_skip(f"MLflow's server on PostgreSQL: no PostgreSQL is installed (apt-get install {postgres.PACKAGE})")
    assert programs is not None
    folder = tmp_path_factory.mktemp("server")
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "ca.pem")]
    subprocess.run(["openssl", "req", *_WORDS, *names], check=True, capture_output=True)
    pair = folder / "pair.pem"
    pair.write_text((folder / "ca.pem").read_text() + (folder / "key").read_text())
    (folder / "auth.ini").write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder}/auth.db\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        f"admin_username = {USER}\nadmin_password = {PASSWORD}\nauth_cache_ttl_seconds = 3600\n"
    )
    argv = [sys.executable, "-P", "-m", "mlflow", "server", "--workers", "1", "--app-name", "basic-auth"]
    argv += ["--artifacts-destination", str(folder / "artifacts"), "--port"]
    own = {"MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"), "MLFLOW_FLASK_SERVER_SECRET_KEY": "k" * 32}
    own |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with postgres.server(programs) as address:
        environment = os.environ | own | {"MLFLOW_BACKEND_STORE_URI": address}
        with (
            mlflow_server.running(lambda port: [*argv, str(port)], folder, environment) as port,
            Gate(port, asks=False, certificate=pair) as gate,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv("MLFLOW_TRACKING_USERNAME", USER)
            patch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
            patch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(folder / "ca.pem"))
            # A user's value: a repeated request would create a second page or model.
            patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
            limit_requests()
            yield gate


@pytest.fixture(scope="module")
def site(gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> _Site:
    home = tmp_path_factory.mktemp("home")
    repo = Repository.create(LocalStore(home / "store", durable=False))
    tracker = Mlflow(gate.url, "pages", repo.store.url, home / "runs")
    snapshot = written.publish_snapshot(repo, home / "source")
    embedded = Mlflow(f"sqlite:///{home}/mlflow.db", "pages", repo.store.url, home / "others")
    embedded.migrate()
    site = _Site(gate=gate, repo=repo, snapshot=snapshot, tracker=tracker, embedded=embedded)
    site.whole = site.undisturbed(_PARTS)
    return site


@pytest.mark.parametrize("fault", ["is_down", pytest.param("fails", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "when",
    [
        pytest.param((True, False, False), id="at the start", marks=pytest.mark.soak),
        pytest.param((False, True, False), id="in the middle"),
        pytest.param((True, True, True), id="until the end", marks=pytest.mark.soak),
    ],
)
def test_a_page_after_an_outage_equals_the_page_of_an_undisturbed_run(
    site: _Site, fault: str, when: tuple[bool, bool, bool]
) -> None:
    run = site.begin()
    follower = Follower(site.tracker.options(run.id))
    for part, is_out in zip(_PARTS, when, strict=True):
        site.train(run, part)
        setattr(site.gate, fault, is_out)
        try:
            if is_out:
                with pytest.raises(Exception, match=r"500|Max retries|API request"):
                    follower.advance()
            else:
                follower.advance()
        finally:
            setattr(site.gate, fault, False)
    written.end(site.repo, run)
    follower.advance(last=True)
    assert site.content(run) == site.whole and not follower.refused


_FAULTS = ("down", "500", "lost", "cut")


def _deliver(site: _Site, plan: Callable[[int], str], parts: Sequence[range] = _PARTS) -> tuple[Run, int]:
    """Deliver a run while it trains, by a gate with a plan, and again when the server is back.

    Return the run, and the number of broken requests. A follower calls `advance` again after an error.
    """
    run, broken = site.begin(), site.gate.turned_away
    follower = Follower(site.tracker.options(run.id))
    site.gate.seen, site.gate.plan = 0, plan
    try:
        for part in parts:
            site.train(run, part)
            with suppress(MlflowException, RequestException):
                follower.advance()
        written.end(site.repo, run)
        with suppress(MlflowException, RequestException):
            follower.advance(last=True)
    finally:
        site.gate.plan = lambda _: ""
    follower.advance(last=True)
    assert not follower.refused
    return run, site.gate.turned_away - broken


def _at(first: int, end: int, fault: str, number: int) -> str:
    return fault if first <= number < end else ""


def _every(count: int, fault: str, number: int) -> str:
    return "" if number % count else fault


def _plans(seed: int, requests: int) -> Iterator[tuple[str, str, Callable[[int], str]]]:
    """Yield the outages of the matrix by fault and moment."""
    draw = random.Random(seed)
    for fault in _FAULTS:
        for at in range(requests):
            yield fault, f"request {at}", partial(_at, at, at + 1, fault)
        for every in (2, 3):
            yield fault, f"every {every}", partial(_every, every, fault)
        for at in sorted(draw.sample(range(requests), 6)):
            yield fault, f"from {at} on", partial(_at, at, sys.maxsize, fault)
    for share in (0.1, 0.3, 0.6):
        drawn = [draw.choice(_FAULTS) if draw.random() < share else "" for _ in range(100 * requests)]
        yield "mixed", f"{share:.0%} of requests", drawn.__getitem__


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_page_after_broken_requests_equals_the_page_of_an_undisturbed_run(site: _Site, fault: str) -> None:
    run, broken = _deliver(site, partial(_every, 3, fault))
    assert broken and site.content(run) == site.whole


@pytest.mark.soak
def test_a_page_after_any_outage_of_the_matrix_equals_the_page_of_an_undisturbed_run(
    site: _Site, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.getoption("--campaign-seed") or random.randrange(2**32))
    whole = site.undisturbed(_SHORT)
    _deliver(site, lambda _: "", _SHORT)
    requests, rows, wrong = site.gate.seen, dict[tuple[str, str], list[int]](), list[str]()
    plans = list(_plans(seed, requests))
    # A campaign that is ended early has measured a sample.
    random.Random(seed).shuffle(plans)
    header = "| fault | requests | deliveries | broken requests | equal |", "|---|---|---|---|---|"
    for fault, moment, plan in plans:
        run, broken = _deliver(site, plan, _SHORT)
        is_equal = site.content(run) == whole
        key = fault, re.sub(r"^(request|from) \d+", r"\1 n", moment)
        counts = zip(rows.get(key, (0, 0, 0)), (1, broken, is_equal), strict=True)
        rows[key] = [known + new for known, new in counts]
        wrong += [] if is_equal else [f"{fault}, {moment}"]
        print(f"seed {seed}: {fault}, {moment}: {is_equal}", flush=True)
        lines = [f"| {' | '.join((*key, *map(str, row)))} |" for key, row in sorted(rows.items())]
        about = f"Seed {seed}, {requests} requests without an outage, {len(plans)} outages in the matrix."
        soak_page.write("mlflow-outages", (about, "", *header, *lines))
    assert not wrong


class _Clock:
    """The waits of a follower's process, at once. Time passes at each wait, and the run goes on with it."""

    def __init__(self, moments: Mapping[float, Callable[[], None]]) -> None:
        self.now_s, self.waits, self._moments = 0.0, 0, sorted(moments.items())

    def wait(self, limit_s: float | None) -> tuple[bool, bool]:
        """Wait for the next event of the run, or for the limit, as the process does for its input."""
        self.waits += 1
        moment, happen = self._moments[0]
        if limit_s is not None and self.now_s + limit_s < moment:
            self.now_s += limit_s
            return False, False
        self.now_s = moment
        self._moments.pop(0)
        happen()
        return True, not self._moments


@pytest.mark.parametrize("fault", ["is_down", "fails"])
def test_a_server_that_is_away_for_hours_gets_the_whole_run_when_it_is_back(
    site: _Site, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, hour_s = site.begin(), 3600.0
    steps = iter(_PARTS)

    def turn(is_out: bool) -> None:
        setattr(site.gate, fault, is_out)

    def end() -> None:
        written.end(site.repo, run)

    turn(True)
    clock = _Clock(
        {
            **{hour * hour_s: lambda: site.train(run, next(steps)) for hour in (0.5, 2, 5)},
            6 * hour_s: lambda: turn(False),
            7 * hour_s: end,
        }
    )
    monkeypatch.setattr(process, "_wait", clock.wait)
    before = site.gate.turned_away
    try:
        assert process._follow(site.tracker.options(run.id)) == 0
    finally:
        turn(False)
    assert site.content(run) == site.whole
    # It asks once a minute, and not less.
    assert 5 * 60 <= clock.waits <= 6 * 60 + 20 and site.gate.turned_away - before >= 5 * 60


def test_a_sync_replays_a_run_once_and_an_interrupted_sync_is_completed(site: _Site) -> None:
    run = site.run()
    missing = site.tracker.sync(run.id, dry_run=True, progress=None)
    assert (missing.page, missing.steps, missing.models, missing.datasets) == (None, 360, 3, 2)

    def fail(activity: str, done: int, total: int) -> None:
        site.gate.fails = done > 0

    try:
        with pytest.raises(TrackerError, match="500"):
            site.tracker.sync(run.id, dry_run=False, progress=fail)
    finally:
        site.gate.fails = False
    rest = site.tracker.sync(run.id, dry_run=False, progress=None)
    assert 0 < rest.steps < 360 and rest.models == 3
    assert site.content(run) == site.whole
    again = site.tracker.sync(run.id, dry_run=False, progress=None)
    assert (again.page, again.steps, again.models, again.datasets) == (rest.page, 0, 0, 0)
    assert site.content(run) == site.whole


def test_a_wrong_password_and_an_unknown_authority_are_errors_without_the_password(
    site: _Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = site.run()
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "not-the-pass-phrase")
    with pytest.raises(TrackerError, match="401") as refused:
        site.tracker.sync(run.id, dry_run=True, progress=None)
    assert "not-the-pass-phrase" not in str(refused.value)
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    with pytest.raises(TrackerError, match="CERTIFICATE_VERIFY_FAILED") as unknown:
        site.tracker.sync(run.id, dry_run=True, progress=None)
    assert "MLFLOW_TRACKING_SERVER_CERT_PATH" in unknown.value.hint
