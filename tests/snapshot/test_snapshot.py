"""Equal and different ids of snapshots."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.repository.files import trees
from m5ws.repository.files.materialise import materialise
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.faults.settling import settle
from tests.support.paths import ROOT
from tests.support.workspace.captures import make_settings, names, take
from tests.support.workspace.checkouts import commit_all, git, write


def test_equal_files_give_the_same_snapshot(root: Path, repo: Repository) -> None:
    settle(root)
    first, second = take(root, repo), take(root, repo)
    assert first.id == second.id
    assert first.id in snapshots.ids(repo)
    assert (second.unchanged, second.new_bytes, second.files) == (True, 0, 5)
    assert (
        first.size_bytes
        == second.size_bytes
        == sum(map(len, ("print(1)\n", "lr: 1\n", "#!/bin/sh\n", "*.log\n", "bin/go")))
    )


def test_a_clone_in_another_directory_gives_the_same_snapshot(root: Path, repo: Repository, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(root), "elsewhere/deep")
    second_repo = Repository.create(LocalStore(tmp_path / "second-store"))
    git(tmp_path / "elsewhere" / "deep", "checkout", "-q", "-b", "topic")
    assert take(tmp_path / "elsewhere" / "deep", second_repo).id == take(root, repo).id


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("print(2)\n"),
        lambda root: (root / "new.py").write_text(""),
        lambda root: (root / "train.py").chmod(0o755),
        lambda root: (root / "train.py").unlink(),
        lambda root: (root / "config.yaml").write_text("lr: 2\n"),
        lambda root: git(root, "commit", "-q", "--allow-empty", "-m", "second"),
    ],
)
def test_any_change_gives_another_snapshot(root: Path, repo: Repository, change: Callable[[Path], object]) -> None:
    before = take(root, repo).id
    change(root)
    assert take(root, repo).id != before


def test_files_outside_the_capture_do_not_change_the_snapshot(root: Path, repo: Repository) -> None:
    excluding = make_settings(code={"exclude": ["notes/", "*.tmp"]}, store={"url": "stores/main"})
    before = take(root, repo, excluding)
    write(root, {"x.log": "1", "notes/a.md": "1", "sub/b.tmp": "1", "stores/main/objects/aa": "1", ".m5ws/runs/x": "1"})
    after = take(root, repo, excluding)
    assert (after.id, after.snapshot.code.dirty) == (before.id, False)


@pytest.mark.parametrize("is_repository", [True, False])
def test_untracked_files_in_declared_outputs_are_in_no_snapshot(
    root: Path, repo: Repository, is_repository: bool
) -> None:
    declaring = make_settings(run={"outputs": ["out", "model.pt", "figures/*.png", "."]})
    write(root, {"out/.gitkeep": ""})
    commit_all(root)
    if not is_repository:
        shutil.rmtree(root / ".git")
        (root / "out" / ".gitkeep").unlink()
    before = take(root, repo, declaring)
    write(root, {"out/a/1.pt": "1", "model.pt": "1", "figures/a.png": "1"})
    after = take(root, repo, declaring)
    assert (after.id, after.snapshot.code.dirty) == (before.id, False)
    assert ("out/.gitkeep" in names(repo, after)["code"]) == is_repository
    write(root, {"outside/a.png": "1"})
    assert take(root, repo, declaring).id != before.id


def test_a_snapshot_record_contains_no_host_and_no_path(root: Path, repo: Repository) -> None:
    captured = take(root, repo)
    record = repo.objects.get(captured.id)
    assert os.fsencode(root) not in record
    assert os.uname().nodename.encode() not in record


_UNCHANGED = """
import sys
from pathlib import Path
root = Path(sys.argv[1])
opened = []
def hook(event, arguments):
    if event == "open" and str(arguments[0]).startswith(str(root)):
        own = {".m5ws", ".git"} & set(Path(arguments[0]).parts)
        if not own and not Path(arguments[0]).is_dir():
            opened.append(arguments[0])
sys.addaudithook(hook)
from tests.support.workspace.captures import take
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
captured = take(root, Repository.open(LocalStore(root.parent / "store")))
heavy = {"torch", "dvc", "mlflow", "tokenizers", "ruamel", "tomlkit", "pathspec"}
print(captured.unchanged, opened, sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""


def test_an_unchanged_second_snapshot_reads_no_file_and_loads_nothing_heavy(root: Path, repo: Repository) -> None:
    settle(root)
    take(root, repo)
    command = [sys.executable, "-c", _UNCHANGED, str(root)]
    inherited = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=inherited)
    assert done.stdout == "True [] []\n"


_COMPONENT = st.one_of(
    st.text("aé字 \n\"'\\\t*?[]#!-~", min_size=1, max_size=6).map(str.encode), st.binary(min_size=1, max_size=6)
).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b"..", b".git", b".m5ws"))
_PATH = st.lists(_COMPONENT, min_size=1, max_size=3).map(b"/".join)
_FILE = st.one_of(st.tuples(st.sampled_from([0o644, 0o755, 0o600]), st.binary(max_size=20)), st.just(None))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(_PATH, _FILE, max_size=6))
def test_materialised_files_give_the_same_snapshot(
    tmp_path_factory: pytest.TempPathFactory, files: dict[bytes, tuple[int, bytes] | None]
) -> None:
    base = tmp_path_factory.mktemp("trip")
    root = base / "w"
    root.mkdir()
    for path, file_or_link in files.items():
        place = os.path.join(os.fsencode(root), path)
        if any(
            os.path.lexists(os.path.join(os.fsencode(root), *path.split(b"/")[:n]))
            for n in range(1, path.count(b"/") + 1)
        ):
            continue
        if os.path.lexists(place):
            continue
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if file_or_link is None:
            os.symlink(b"\xff\n dangling", place)
            continue
        mode, content = file_or_link
        with open(place, "wb") as file:
            file.write(content)
        os.chmod(place, mode)
    repo = Repository.create(LocalStore(base / "store"))
    first = take(root, repo)
    parts = [trees.load(repo.objects, tree) for tree in first.snapshot.trees.values()]
    materialise(repo.objects, parts, base / "copy")
    assert take(base / "copy", repo).id == first.id
