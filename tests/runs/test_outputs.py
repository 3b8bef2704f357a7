"""Files of an attempt outside of its outputs: listed by name, or by folder where there are many."""

from pathlib import Path

from m5ws.runs.outputs import outputs
from tests.support.workspace.checkouts import write


def _not_kept(work: Path) -> str:
    (line,) = outputs.collect(work, ["out"], {}, 0).not_kept
    return line


def test_many_files_of_a_folder_are_one_line_and_few_are_named(tmp_path: Path) -> None:
    write(tmp_path, {f"wandb/run-1/files/{number:02d}.json": "x" * 100_000 for number in range(31)})
    write(tmp_path, {"logs/a.txt": "", "logs/b.txt": "", "notes.txt": "", "out/kept.txt": ""})
    line = _not_kept(tmp_path)
    assert "logs/a.txt, logs/b.txt, notes.txt, wandb/ (31 files, 3.1 MB)" in line and "more" not in line
    assert outputs.candidates([line]) == ["logs", "notes.txt", "wandb"]


def test_sizes_above_a_thousand_are_no_names(tmp_path: Path) -> None:
    write(tmp_path, {f"cache/{number}": "" for number in range(1200)})
    with open(tmp_path / "cache" / "large", "wb") as file:
        file.truncate(2 * 10**9)
    line = _not_kept(tmp_path)
    assert "cache/ (1,201 files, 2,000.0 MB)" in line and outputs.candidates([line]) == ["cache"]


def test_messages_of_older_versions_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": ""})
    older = _not_kept(tmp_path).replace("a.txt", "wandb/1.json, wandb/2.json, model.pt, and 7 more")
    assert outputs.candidates([older])[:2] == ["wandb", "model.pt"]
