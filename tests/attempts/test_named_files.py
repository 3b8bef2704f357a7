"""A script that the snapshot lacks, and a program that PATH lacks, are refused before the launch."""

import os
from pathlib import Path

import pytest

from m5ws.attempts import named_files
from m5ws.errors import UsageError
from m5ws.records.run import LaunchSpec
from m5ws.repository.repository import Repository
from tests.support.records import planted


@pytest.mark.parametrize(("script", "suggested"), [("trian.py", "train.py"), ("other.py", None), ("jsrun", None)])
def test_the_error_for_a_missing_script_suggests_a_similar_script(
    repo: Repository, tmp_path: Path, script: str, suggested: str | None
) -> None:
    root = tmp_path / "w"
    snapshot = planted.snapshot(planted.tree(repo, root, {"train.py": "", "exp/eval.py": "", "run.py": ""}))
    spec = LaunchSpec(command=(script,))
    with pytest.raises(UsageError) as refused:
        named_files.refuse_missing_script(repo, snapshot, spec, {})
    hint = refused.value.hint
    assert f"mean {suggested}?" in hint if suggested is not None else "mean" not in hint
    for command in (
        ("./train.py",),
        ("torchrun", "train.py"),
        ("-m", "anything"),
        ("sh", "-c", "true"),
        ("./run.py", "x"),
    ):
        named_files.refuse_missing_script(repo, snapshot, LaunchSpec(command=command), dict(os.environ))
    for below in ("eval.py", "../train.py"):
        spec = LaunchSpec(command=(below,), directory="exp")
        named_files.refuse_missing_script(repo, snapshot, spec, {})
