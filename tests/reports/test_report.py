"""Reports on runs: they have all that the store has of a run, and no value becomes markup."""

import re
from pathlib import Path

import pytest

from m5ws.pages import page
from m5ws.reports import report, report_page
from m5ws.reports.report import RunReport
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.pages.reading import Reader, read
from tests.support.records import reported
from tests.support.stores.counting_store import CountingStore


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("reported")
    repo = Repository.create(LocalStore(folder / "store", durable=False))
    reported.publish(repo, folder / "plain")
    return repo


@pytest.fixture(scope="module")
def built(repo: Repository) -> RunReport:
    return report.build(repo, _original(repo))


def _original(repo: Repository) -> str:
    names = repo.store.names("notes/")
    assert len(names) == 1
    return names[0]


def _read(found: RunReport) -> Reader:
    return read(report_page.build(found))


def test_a_report_has_inputs_verdicts_curves_and_lineage(repo: Repository, built: RunReport) -> None:
    reader = _read(built)
    view = built.view
    expected = [view.run.snapshot, *(part.tree for part in built.snapshot.parts), *(row.id for row in view.replays)]
    expected += [row.id for row in view.forks] + ["NVIDIA H100 80GB HBM3", "train.lr", "A. Author", "supported"]
    assert [text for text in expected if text not in reader.text] == []
    assert [verdict.outcome for verdict in built.verdicts] == ["reproduced", "diverged"]
    banner = next(found for name, found in reader.tags if found.get("class", "").startswith("verdict"))  # type: ignore[union-attr]
    assert banner["class"] == "verdict good"
    assert "step 1, rank 0, lr" in reader.text and "0x1.3a92a30553261p-12 (0.0003)" in reader.text
    assert [name for name, _ in reader.tags].count("figure") == 3
    assert len(built.curves) == 3 and built.curves[0].points == built.curves[1].points


def test_the_report_on_a_replay_includes_its_original(repo: Repository, built: RunReport) -> None:
    for row in built.view.replays:
        found = report.build(repo, row.id)
        assert found.curves[0].run == built.view.run.id
        (verdict,) = found.verdicts
        assert verdict.replay == row.id and verdict.outcome in _read(found).text


def test_a_page_loads_nothing_and_forbids_scripts(built: RunReport) -> None:
    data = report_page.build(built)
    tags = read(data).tags
    assert data.encode().startswith(page.MARK)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & {name for name, _ in tags}
    assert not any({"src", "href", "action"} & set(found) for _, found in tags)
    policy = next(found["content"] for _, found in tags if found.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_a_replay_with_a_damaged_ledger_has_no_curve(repo: Repository, built: RunReport, tmp_path: Path) -> None:
    other = Repository.create(LocalStore(tmp_path / "store", durable=False))
    _, replay, _ = reported.publish(other, tmp_path / "files")
    key = f"runs/{replay.id}/ledger/0001/0/00000001"
    data = bytearray(other.store.get(key))
    data[-3] ^= 1
    other.store.delete(key)
    other.store.create(key, bytes(data))
    found = report.build(other, _original(other))
    assert [one.problem is not None for one in found.curves] == [False, True, False]
    assert f"No curve of replay {replay.id}" in _read(found).text


def test_a_report_reads_the_chains_of_rank_0_alone(repo: Repository) -> None:
    counting = CountingStore(repo.store)
    report.build(Repository.open(counting), _original(repo))
    steps = [key for key in counting.gets if "/0001/1/" in key and not key.endswith("00000000")]
    assert len(steps) <= 3


def test_no_template_marks_a_text_as_markup() -> None:
    templates = [path.read_text() for path in Path(page.__file__).parent.glob("*.html")]
    assert len(templates) == 4 and not any(re.search(r"\bsafe\b|autoescape|Markup", text) for text in templates)
