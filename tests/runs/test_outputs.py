"""Files of an attempt outside of its outputs: listed by name, or by folder where there are many."""

from pathlib import Path

from m5ws.runs.outputs import outputs
from tests.support.workspace.checkouts import write


def test_many_files_of_a_folder_are_one_line_and_few_are_named(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work, {f"wandb/run-1/files/{number:02d}.json": "x" for number in range(31)})
    write(work, {"logs/a.txt": "", "logs/b.txt": "", "notes.txt": "", "out/kept.txt": "", "model.pt": ""})
    declared = ("out", "model.pt")
    left = outputs.collect(work, declared, {}, 0)
    (line,) = outputs.describe_others(tmp_path, work, declared, {}, left)
    assert line == "written outside [run] outputs: logs/a.txt, logs/b.txt, notes.txt, wandb/ (31 files)"
    assert {file.path for file in left.files} == {b"out/kept.txt", b"model.pt"}
