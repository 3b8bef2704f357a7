"""`m5ws report`: the page and its place."""

from pathlib import Path

from tests.cli.conftest import M5, Made


def test_a_report_can_be_written_twice(m5: M5, made: Made, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    for _ in range(2):
        done = m5("report", made.run, "-o", target, "--json")
        assert done.status == 0, done.err
    assert done.document == {"run": made.run, "file": str(target), "verdict": "reproduced"}
    assert made.replay in target.read_text()
