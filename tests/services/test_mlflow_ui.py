"""MLflow's own pages in a real browser: two runs side by side differ in their pins, and in nothing else.

M5WS_SCREENSHOTS=docs/images makes the test write the pictures of docs/how-to/compare-runs-in-mlflow.md.
"""

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from mlflow import MlflowClient

from m5ws.records.reasons import Differs
from m5ws.records.run import Run
from m5ws.records.verdict import Change, Divergence, Verdict
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.tracking.mlflow.follower import Follower
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.conftest import loud_skip
from tests.services.conftest import MlflowServer
from tests.support.machine.chromium import Browser, executable
from tests.support.records import mlflow_runs as written

pytestmark = pytest.mark.services

PINS = {
    "m5ws.snapshot_id",
    "m5ws.code_tree",
    "m5ws.config",
    "m5ws.tokenizer",
    "m5ws.data",
    "m5ws.image_digest",
    "m5ws.nccl",
    "m5ws.efa",
    "m5ws.cuda",
    "m5ws.driver",
    "m5ws.torch",
    "m5ws.gpu",
}
_ROWS = """
(label => [...(document.querySelector(`[aria-label="${label} - Show diff only"]`)?.parentElement.parentElement
    .querySelectorAll("tr") ?? [])].map(row => [...row.children].map(cell => cell.innerText.trim())))
"""
_HEIGHTS = """
[...document.querySelectorAll("tr")].filter(row => row.children[0].innerText.startsWith("m5ws."))
    .map(row => [row.children[0].innerText, Math.round(row.getBoundingClientRect().height)])
"""


class Site(msgspec.Struct):
    """A running UI, and the MLflow ids of an original and of a diverged replay."""

    url: str
    experiment: str
    original: str
    diverged: str


@pytest.fixture(scope="module")
def site(ui_server: MlflowServer, tmp_path_factory: pytest.TempPathFactory) -> Site:
    if executable() is None:
        loud_skip("the MLflow UI: no chromium is installed (Debian: apt-get install chromium)")
    directory = tmp_path_factory.mktemp("ui")
    repo = Repository.create(LocalStore(directory / "store"))
    tracker = Mlflow(ui_server.database, "gpt", repo.store.url, directory / "runs")
    pages = [_deliver(repo, tracker, run) for run in _runs(repo, directory)]
    client = MlflowClient(tracker.tracking_uri)
    ids = [find(client, run.id)[0] for run in pages]
    _judge(repo, tracker, *pages)
    return Site(tracker.ui_url(ui_server.port), client.get_run(ids[0]).info.experiment_id, *ids)


@pytest.fixture
def browser(site: Site, tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as opened:
        yield opened


def _runs(repo: Repository, directory: Path) -> tuple[Run, Run]:
    first = written.publish_snapshot(repo, directory / "first")
    other = written.publish_snapshot(repo, directory / "other", config=written.CONFIG.replace("3.0e-4", "3.1e-4"))
    original = written.publish_run(repo, first, name="gpt-fsdp")
    changed = written.publish_run(repo, other, name="gpt-fsdp, another lr", reproduces=original.id, purpose="reproduce")
    return original, changed


def _deliver(repo: Repository, tracker: Mlflow, run: Run) -> Run:
    changed = run.name is not None and "another" in run.name
    written.begin(repo, run, facts=written.FACTS | ({"nccl": "2.30.0"} if changed else {}))
    written.train(repo, run, range(1, 61), lr=3.1e-4 if changed else 3.0e-4)
    written.checkpoint(repo, run, 60)
    written.end(repo, run)
    Follower(tracker.options(run.id, once=True)).advance(last=True)
    return run


def _judge(repo: Repository, tracker: Mlflow, original: Run, changed: Run) -> None:
    first = Divergence(step=1, rank=0, quantity="lr", original=(3.0e-4).hex(), replayed=(3.1e-4).hex())
    changes = (
        Change(part="config", name="train.lr", old="3.0e-4", new="3.1e-4"),
        Change(part="environment", name="nccl", old="2.29.3", new="2.30.0"),
    )
    verdict = Verdict(
        run=original.id,
        replay=changed.id,
        outcome="diverged",
        first=first,
        changes=changes,
        reasons=(Differs(),),
        created_s=1.0,
    )
    runs.publish_verdict(repo, verdict)
    for name in (verdict.run, *verdict.replays):
        tracker.refresh(name)


def _compare(browser: Browser, site: Site, *ids: str) -> None:
    query = urllib.parse.urlencode({"runs": json.dumps(ids), "experiments": json.dumps([site.experiment])})
    browser.open(f"{site.url}/#/compare-runs?{query}")
    browser.until(f"{_ROWS}('Tags').some(row => row[0] === 'm5ws.torch')")
    _close_assistant(browser)


def _rows(browser: Browser, section: str) -> dict[str, list[str]]:
    rows: list[list[str]] = browser.evaluate(f"{_ROWS}('{section}')")
    return {row[0]: row[1:] for row in rows if row[0]}


def _show_diff_only(browser: Browser, section: str) -> None:
    switch = f"""document.querySelector('[aria-label="{section} - Show diff only"]')"""
    browser.evaluate(f"{switch}.click()")
    browser.until(f"{switch}.ariaChecked === 'true'")


def _close_assistant(browser: Browser) -> None:
    browser.evaluate("document.querySelector('button[aria-label=Close]')?.click()")
    browser.until("!document.body.innerText.includes('Ask questions about')")


def _picture(browser: Browser, name: str, top: str | None = None) -> None:
    """Save a screenshot for the docs, scrolled to the element that `top` selects, if somebody asked for it."""
    directory = os.environ.get("M5WS_SCREENSHOTS")
    if directory is None:
        return
    if top is not None:
        browser.evaluate(f"{top}.scrollIntoView()")
    browser.until("document.getAnimations().every(one => one.playState !== 'running')")
    path = Path(directory) / f"{name}.png"
    browser.screenshot(path)
    assert path.stat().st_size < 300_000


def test_every_pin_is_one_line_on_the_comparison_page(site: Site, browser: Browser) -> None:
    _compare(browser, site, site.original, site.diverged)
    tags = _rows(browser, "Tags")
    assert set(tags) >= PINS
    assert all(value and "\n" not in value for name in PINS for value in tags[name])
    heights = dict(browser.evaluate(_HEIGHTS))
    assert {name: heights[name] for name in PINS} == dict.fromkeys(PINS, heights["m5ws.attempt"])


@pytest.mark.soak
def test_show_diff_only_leaves_the_rows_that_differ(site: Site, browser: Browser) -> None:
    _compare(browser, site, site.original, site.diverged)
    _show_diff_only(browser, "Tags")
    _show_diff_only(browser, "Parameters")
    browser.until(f"!{_ROWS}('Tags').some(row => row[0] === 'm5ws.torch')")
    tags = _rows(browser, "Tags")
    assert set(tags) & PINS == {"m5ws.snapshot_id", "m5ws.config", "m5ws.nccl"}
    assert tags["m5ws.nccl"] == ["2.29.3", "2.30.0"]
    assert _rows(browser, "Parameters") == {"train.lr": ["0.0003", "0.00031"]}
    browser.resize(1400, 1250)
    _picture(browser, "mlflow-compare", """document.querySelector('[aria-label="Parameters - Show diff only"]')""")


def test_the_page_of_a_run_shows_the_verdict(site: Site, browser: Browser) -> None:
    browser.open(f"{site.url}/#/experiments/{site.experiment}/runs/{site.diverged}")
    browser.until("document.body?.innerText.includes('The first difference is lr at step 1 on rank 0')")
    text = browser.evaluate("document.body.innerText")
    assert "[//]" not in text
    assert "m5ws.verdict" in text
    _close_assistant(browser)
    _picture(browser, "mlflow-run")


@pytest.mark.soak
def test_the_loss_is_drawn_over_steps(site: Site, browser: Browser) -> None:
    browser.open(f"{site.url}/#/experiments/{site.experiment}/runs/{site.original}/model-metrics")
    browser.until(
        "document.body?.innerText.includes('m5ws/loss') && document.querySelector('.main-svg .scatterlayer path')"
    )
    _close_assistant(browser)
    _picture(browser, "mlflow-metrics")
