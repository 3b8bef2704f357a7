"""`m5ws compare`: the table, the JSON document and the page."""

from pathlib import Path

from tests.cli.conftest import M5, Made


def test_runs_are_compared_in_a_table_in_json_and_on_a_page(m5: M5, made: Made, tmp_path: Path) -> None:
    page = tmp_path / "compared.html"
    done = m5("compare", made.run[:-1] + "1", made.replay, "--html", page)
    assert done.status == 0, done.err
    assert "none in 3 common steps" in done.out and "no input that can change bits" in done.out
    assert "<svg" in page.read_text() and made.replay in page.read_text()
    document = m5("compare", "--json", made.run, made.replay).document
    assert [run["id"] for run in document["runs"]] == [made.run, made.replay]
    assert document["runs"][1]["outcome"] == "reproduced" and document["inputs"] == []


def test_compare_refuses_a_single_run_and_overwrites_no_other_file(m5: M5, made: Made, place: Path) -> None:
    assert m5("compare", made.run).status == 2
    before = (place / "train.py").read_text()
    done = m5("compare", made.run, made.replay, "--html", place / "train.py")
    assert (done.status, done.out) == (2, "") and "train.py" in done.err
    assert (place / "train.py").read_text() == before
