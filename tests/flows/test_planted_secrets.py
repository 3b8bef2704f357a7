"""A token in each text that a person gives: the command refuses it, or the store has it masked."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import Workspace, make_workspace

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
KEY = "9f8e7d6c5b4a392817069f8e7d6c5b4a39281706"
"""A key that only its name makes a secret."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("secrets") / "w", "plain.py", nproc=1, run='outputs = ["out"]')
    (made.root / "train.py").write_text("import pathlib\npathlib.Path('out/a.txt').write_text('1')\n")
    git(made.root, "commit", "-qam", "plain")
    return made


def _stored(root: Path) -> Iterator[bytes]:
    """Yield all bytes of a store, its keys, and the text inside of compressed batches and names of the index."""
    store = root / ".m5ws" / "store"
    for path in store.rglob("*"):
        yield str(path.relative_to(store)).encode()
        for part in path.name.split("."):
            if part[:1] == "n" and re.fullmatch(r"[\w-]+", part[1:]):
                yield base64.urlsafe_b64decode(part[1:] + "=" * (-len(part[1:]) % 4))
        if path.is_file():
            yield path.read_bytes()


def _check(workspace: Workspace) -> None:
    for data in _stored(workspace.root):
        assert TOKEN.encode() not in data and KEY.encode() not in data, data[:200]


REFUSED: dict[str, tuple[str, ...]] = {
    "name": ("run", "--name", f"try {TOKEN}"),
    "argument": ("run", "--", "train.py", TOKEN),
    "argument after an option": ("run", "--", "train.py", "--wandb_api_key", KEY),
    "argument with its option": ("run", "--", "train.py", f"--wandb_api_key={KEY}"),
    "argument like Hydra's": ("run", "--", "train.py", f"wandb.api_key={KEY}"),
    "password": ("run", "--", "train.py", "--db-password", "hunter2hunter2"),
    "override": ("run", "--set", f"batch={TOKEN}"),
    "new key": ("run", "--set", f"+wandb_api_key={KEY}"),
    "name of a new key": ("run", "--set", f"+{TOKEN}=1"),
    "value of a sweep": ("sweep", f"batch=1,{TOKEN}"),
    "name of a sweep's run": ("sweep", "--name", TOKEN, "batch=1,2"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_a_secret_in_a_text_that_a_run_depends_on_is_refused(workspace: Workspace, words: tuple[str, ...]) -> None:
    done = workspace.m5ws(*words, expect=2)
    assert "secret" in done.stderr and TOKEN not in done.stderr and KEY not in done.stderr
    _check(workspace)


@pytest.mark.parametrize(
    ("file", "text"),
    [("m5ws.toml", f'[run.environment]\nX = "{TOKEN}"\n'), (f"{TOKEN}.txt", "1"), ("data/a.txt", f"token {TOKEN}")],
)
def test_a_file_with_a_token_in_its_name_or_content_is_refused(workspace: Workspace, file: str, text: str) -> None:
    path = workspace.root / file
    before = path.read_text() if path.exists() else None
    path.write_text((before or "") + text)
    done = workspace.m5ws("snapshot", expect=2)
    assert "secret" in done.stderr and TOKEN not in done.stderr
    path.unlink()
    if before is not None:
        path.write_text(before)
    _check(workspace)


def test_a_secret_in_a_description_is_masked(workspace: Workspace) -> None:
    root = workspace.root
    git(root, "checkout", "-qb", f"try-{TOKEN}")
    git(root, "config", "user.name", f"Ann {TOKEN}")
    git(root, "remote", "add", "origin", f"https://ann:{TOKEN}@example.org/r.git")
    git(root, "commit", "-q", "--allow-empty", "-m", f"use {TOKEN}")
    snapshot = workspace.m5ws("snapshot", "--message", f"with {TOKEN}").stdout.split()[0]
    run = workspace.m5ws("run", "--why", f"because of {TOKEN}", "--no-progress").stdout.split()[-1]
    workspace.m5ws("note", run, f"wandb_api_key: {KEY}, {TOKEN}")
    report = root.parent / "page.html"
    shown = [workspace.m5ws("show", snapshot), workspace.m5ws("show", run), workspace.m5ws("ls")]
    workspace.m5ws("report", run, "--output", str(report))
    for text in (*(done.stdout + done.stderr for done in shown), report.read_text()):
        assert TOKEN not in text and KEY not in text
    assert any("***" in done.stdout for done in shown)
    workspace.m5ws("rm", run)
    _check(workspace)
