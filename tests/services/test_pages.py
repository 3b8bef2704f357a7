"""The pages of `m5ws report` and `m5ws compare` in a real browser: they fit, have their curves, and run nothing.

M5WS_SCREENSHOTS=docs/images makes the test write the pictures of docs/how-to/report-a-run.md and compare-runs.md.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.pages import page
from m5ws.reports import comparison, comparison_page, report, report_page
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.conftest import loud_skip
from tests.support.machine.chromium import Browser, executable
from tests.support.records import reported

pytestmark = pytest.mark.services

_HOSTILE = "</td></title><script>window.alarm = 1</script><img src=x onerror='window.alarm = 1'>"
_HEIGHTS = (
    "[...document.querySelectorAll('figure > svg')].map(chart => Math.round(chart.getBoundingClientRect().height))"
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if executable() is None:
        loud_skip("pages of runs: no chromium is installed (Debian: apt-get install chromium)")
    with Browser(tmp_path / "profile", width=1100, height=1000) as opened:
        yield opened


def _open(browser: Browser, path: Path, data: str) -> None:
    page.write(path, data)
    browser.open(path.as_uri())
    browser.until("document.readyState === 'complete' && document.querySelector('h1')")


def _assert_sound(browser: Browser, charts: int) -> None:
    """Assert that the page has its charts, at any width, without a script, and that nothing sticks out."""
    for width in (1100, 400):
        browser.resize(width, 1000)
        browser.until(f"window.innerWidth === {width}")
        heights = browser.evaluate(_HEIGHTS)
        assert len(heights) == charts and all(height > 80 for height in heights)
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.evaluate("document.scripts.length") == 0 and browser.evaluate("window.alarm") is None
    assert browser.evaluate("performance.getEntriesByType('resource').length") == 0
    browser.resize(1100, 1000)
    browser.until("window.innerWidth === 1100")


def _picture(browser: Browser, name: str, height: int) -> None:
    """Save a screenshot for the docs, if somebody asked for it."""
    if (directory := os.environ.get("M5WS_SCREENSHOTS")) is not None:
        browser.resize(1100, height)
        browser.until(f"window.innerHeight === {height}")
        path = Path(directory) / f"{name}.png"
        browser.screenshot(path)
        assert path.stat().st_size < 300_000


def test_a_report_is_readable_and_shows_the_first_difference_of_a_replay(browser: Browser, tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store", durable=False))
    original, _, changed = reported.publish(repo, tmp_path / "files")
    _open(browser, tmp_path / "report.html", report_page.build(report.build(repo, original.id)))
    _assert_sound(browser, charts=3)
    text = browser.evaluate("document.body.innerText")
    assert "REPRODUCED" in text and "step 1, rank 0, lr" in text and changed.id in text
    _picture(browser, "report", 1250)


def test_a_comparison_can_be_read(browser: Browser, tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store", durable=False))
    names = [run.id for run in reported.publish(repo, tmp_path / "files")]
    _open(browser, tmp_path / "compared.html", comparison_page.build(*comparison.compare(repo, names)))
    _assert_sound(browser, charts=3)
    assert "train.lr" in browser.evaluate("document.body.innerText")
    _picture(browser, "comparison", 850)


def test_hostile_texts_run_no_script(browser: Browser, tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store", durable=False))
    original, *_ = reported.publish(repo, tmp_path / "files", steps=5, text=_HOSTILE)
    _open(browser, tmp_path / "report.html", report_page.build(report.build(repo, original.id)))
    _assert_sound(browser, charts=3)
    assert browser.evaluate("document.body.innerText").count("window.alarm = 1") > 5
