"""What a snapshot holds, when its id is the same, and what it refuses."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.adapters.git import Git
from m5ws.adapters.tokenizer import Tokenizers
from m5ws.errors import ConfigError, M5Error, MissingExtra, NotFound
from m5ws.operations import snapshot
from m5ws.operations.config_files import BadConfigFile
from m5ws.operations.inspection import LinksOutside, NotTheContent
from m5ws.ports import SourceControl, SourceState, TokenizerProbe
from m5ws.records import Declared, Observed
from m5ws.repository import Repository, fsck, snapshots, trees
from m5ws.repository.capture import FileChanged
from m5ws.repository.materialise import materialise
from m5ws.repository.objects import key
from m5ws.secret_scan import SecretsFound
from m5ws.settings import Settings
from m5ws.store.local import LocalStore
from settling import settle

TOKEN = "gh" + "p_" + "a1B2" * 9


class Machine:
    """A machine that is always the same, and counts how often it is looked at."""

    looks = 0

    def observe(self, environment: Mapping[str, str]) -> Observed:
        self.looks += 1
        return Observed(facts={"python": "3.11", "threads": environment.get("OMP_NUM_THREADS")})

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        return Declared(locks={name: "0" * 64 for name in lock_files if (root / name).is_file()}, image=image)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def say(**sections: Mapping[str, Any]) -> Settings:
    return msgspec.convert(sections, Settings)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace in git: code, a config file, a script and a link."""
    place = tmp_path / "w"
    write(place, {"train.py": "print(1)\n", "config.yaml": "lr: 1\n", "bin/go": "#!/bin/sh\n", ".gitignore": "*.log\n"})
    (place / "bin" / "go").chmod(0o755)
    (place / "latest").symlink_to("bin/go")
    git(place, "init", "-q", "-b", "main")
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "first")
    return place


def take(
    root: Path,
    repo: Repository,
    said: Settings | None = None,
    *,
    machine: Machine | None = None,
    source: SourceControl | None = None,
    probe: TokenizerProbe | None = None,
    message: str | None = None,
    dry_run: bool = False,
) -> snapshot.Captured:
    arguments = (
        root,
        said or Settings(),
        repo,
        source or Git(),
        None,
        probe,
        machine or Machine(),
        root / ".m5ws" / "index",
    )
    return snapshot.capture(*arguments, dry_run=True) if dry_run else snapshot.take(*arguments, message=message)


def names(repo: Repository, captured: snapshot.Captured) -> dict[str, list[str]]:
    """Return the names of the files of each part that has any."""
    found = {part: trees.load(repo.objects, tree).entries for part, tree in captured.snapshot.trees.items()}
    return {part: [entry.name for entry in entries] for part, entries in found.items() if entries}


def stored_bytes(repo: Repository) -> bytes:
    return b"".join(repo.store.get(found.key) for found in repo.store.list(""))


def is_published(repo: Repository, captured: snapshot.Captured) -> bool:
    return captured.id in snapshots.ids(repo)


# --- the id ------------------------------------------------------------------------------------------


def test_the_same_state_is_the_same_snapshot(root: Path, repo: Repository) -> None:
    settle(root)
    first, second = take(root, repo), take(root, repo)
    assert first.id == second.id
    assert is_published(repo, first)
    assert (second.unchanged, second.new_bytes, second.files) == (True, 0, 5)
    assert (
        first.size_bytes
        == second.size_bytes
        == sum(map(len, ("print(1)\n", "lr: 1\n", "#!/bin/sh\n", "*.log\n", "bin/go")))
    )


def test_another_clone_in_another_directory_is_the_same_snapshot(root: Path, repo: Repository, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(root), "elsewhere/deep")
    other = Repository.create(LocalStore(tmp_path / "other-store"))
    git(tmp_path / "elsewhere" / "deep", "checkout", "-q", "-b", "topic")
    assert take(tmp_path / "elsewhere" / "deep", other).id == take(root, repo).id


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
def test_any_change_is_another_snapshot(root: Path, repo: Repository, change: Callable[[Path], object]) -> None:
    before = take(root, repo).id
    change(root)
    assert take(root, repo).id != before


def test_what_is_not_captured_does_not_count(root: Path, repo: Repository) -> None:
    said = say(code={"exclude": ["notes/", "*.tmp"]}, store={"url": "stores/main"})
    before = take(root, repo, said)
    write(root, {"x.log": "1", "notes/a.md": "1", "sub/b.tmp": "1", "stores/main/objects/aa": "1", ".m5ws/runs/x": "1"})
    after = take(root, repo, said)
    assert (after.id, after.snapshot.code.dirty) == (before.id, False)


def test_times_hosts_and_paths_are_not_in_it(root: Path, repo: Repository) -> None:
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
    if event == "open" and str(arguments[0]).startswith(str(root)) and "/.m5ws/" not in str(arguments[0]):
        if not Path(arguments[0]).is_dir():
            opened.append(arguments[0])
sys.addaudithook(hook)
sys.path[:0] = sys.argv[2:]
from test_snapshot import Machine, take
from m5ws.repository import Repository
from m5ws.store.local import LocalStore
captured = take(root, Repository.open(LocalStore(root.parent / "store")))
heavy = {"torch", "dvc", "mlflow", "tokenizers", "ruamel", "tomlkit", "pathspec"}
print(captured.unchanged, opened, sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""


def test_an_unchanged_second_snapshot_reads_no_file_and_loads_nothing_heavy(root: Path, repo: Repository) -> None:
    settle(root)
    take(root, repo)
    here = Path(__file__).parent
    command = [sys.executable, "-c", _UNCHANGED, str(root), str(here), str(here.parent / "support")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True [] []\n"


# --- parts -------------------------------------------------------------------------------------------


def test_every_file_is_in_exactly_one_part(root: Path, repo: Repository) -> None:
    said = say(
        tokenizer={"path": "data/tok"},
        data={"paths": ["data", "other.bin"]},
        config={"files": ["conf/*.yaml", "config.yaml"]},
    )
    write(root, {"data/tok/vocab.json": "{}", "data/a.log": "a", "data/config.yaml": "x: 1"})
    write(root, {"other.bin": "b", "conf/a.yaml": "a: 1", "conf/deep/b.yaml": "b: 1"})
    assert names(repo, take(root, repo, said)) == {
        "code": [".gitignore", "bin/go", "conf/deep/b.yaml", "latest", "train.py"],
        "config": ["conf/a.yaml", "config.yaml"],
        "tokenizer": ["data/tok/vocab.json"],
        "data:data": ["data/a.log", "data/config.yaml"],
        "data:other.bin": ["other.bin"],
    }


def test_a_config_file_that_git_ignores_is_captured_if_it_is_named(root: Path, repo: Repository) -> None:
    write(root, {"local.log": "", "real.yaml": "a: 1\n"})
    (root / "link.yaml").symlink_to("real.yaml")
    captured = take(root, repo, say(config={"files": ["local.log", "link.yaml"]}))
    (link, local) = trees.load(repo.objects, captured.snapshot.config).entries
    assert (link.name, link.mode, local.name) == ("link.yaml", "file", "local.log")
    with pytest.raises(NotFound, match=r"absent\.yaml"):
        take(root, repo, say(config={"files": ["absent.yaml"]}))


def test_the_default_config_file_may_be_absent(root: Path, repo: Repository) -> None:
    (root / "config.yaml").unlink()
    assert "config" not in names(repo, take(root, repo))


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("c.yaml", "a: 1\nb: [1\nc: 2\n", 3),
        ("c.yaml", "a: 1\na: 2\n", 2),
        ("c.json", '{\n"a": 1,\n}', 3),
        ("c.json", '{\n"a": 1,\n"a": 2}', 3),
        ("c.toml", "a = 1\nb = = 2\n", 2),
        ("c.yaml", b"a: 1\nb: \xff\n", 2),
    ],
)
def test_a_config_file_that_is_not_valid_is_named_with_its_line(
    root: Path, repo: Repository, name: str, content: str | bytes, line: int
) -> None:
    write(root, {name: content})
    with pytest.raises(BadConfigFile, match=rf"^{name}:{line}: "):
        take(root, repo, say(config={"files": [name]}))
    assert snapshots.ids(repo) == []


def test_data_is_pinned_whatever_git_thinks_of_it_and_links_are_followed(
    root: Path, repo: Repository, tmp_path: Path
) -> None:
    write(tmp_path / "disk", {"a.log": "1", "deep/b": "2"})
    (root / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "again").symlink_to("deep")
    captured = take(root, repo, say(data={"paths": ["./data/"]}))
    (dataset,) = captured.snapshot.datasets
    assert (dataset.name, dataset.kind, dataset.size_bytes) == ("data", "files", 3)
    assert names(repo, captured)["data:data"] == ["data/a.log", "data/again/b", "data/deep/b"]
    assert "data" not in names(repo, captured)["code"]


def test_data_that_is_not_there_or_named_twice_is_an_error(root: Path, repo: Repository) -> None:
    with pytest.raises(NotFound, match="nothing at 'data'"):
        take(root, repo, say(data={"paths": ["data"]}))
    write(root, {"data/x/y": ""})
    with pytest.raises(ConfigError, match="'data/x' lies in 'data'"):
        take(root, repo, say(data={"paths": ["data", "data/x"]}))
    (root / "data" / "x" / "loop").symlink_to("..")
    with pytest.raises(M5Error, match="leads back"):
        take(root, repo, say(data={"paths": ["data"]}))


def test_what_is_declared(root: Path, repo: Repository) -> None:
    write(root, {"uv.lock": "x"})
    said = say(environment={"image": "x@sha256:1", "wanted": {"nccl": "2.26"}}, determinism={"threads": 3})
    captured = take(root, repo, said)
    assert (list(captured.snapshot.declared.locks), captured.snapshot.declared.wanted) == (
        ["uv.lock"],
        {"nccl": "2.26"},
    )
    assert captured.snapshot.determinism.threads == 3


# --- the tokenizer -----------------------------------------------------------------------------------


class Counting(Tokenizers):
    asked = 0

    def ids(self, tokenizer_json: bytes, text: str) -> tuple[int, ...]:
        self.asked += 1
        return super().ids(tokenizer_json, text)


def _tokenizer(vocabulary: Sequence[str]) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="?"))  # noqa: S106 — not that kind of token
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())


def test_token_ids_are_pinned_and_asked_for_once(root: Path, repo: Repository) -> None:
    pytest.importorskip("tokenizers")
    write(root, {"tok/tokenizer.json": _tokenizer(["?", "b", "a"])})
    said = say(tokenizer={"path": "tok", "probe": "a b c"})
    probe = Counting()
    first = take(root, repo, said, probe=probe)
    assert first.snapshot.tokenizer is not None
    assert (first.snapshot.tokenizer.probe_text, first.snapshot.tokenizer.probe_ids) == ("a b c", (2, 1, 0))
    assert take(root, repo, said, probe=probe).id == first.id
    assert probe.asked == 1
    write(root, {"tok/tokenizer.json": _tokenizer(["?", "a", "b"])})
    changed = take(root, repo, said, probe=probe).snapshot.tokenizer
    assert changed is not None
    assert changed.probe_ids == (1, 2, 0)


def test_a_model_cache_of_links_is_pinned_by_content(root: Path, repo: Repository, tmp_path: Path) -> None:
    write(tmp_path, {"blobs/1": '{"a": 1}'})
    (root / "tok").mkdir()
    (root / "tok" / "vocab.json").symlink_to(tmp_path / "blobs" / "1")
    captured = take(root, repo, say(tokenizer={"path": "tok"}), probe=Tokenizers())
    assert captured.snapshot.tokenizer is not None
    (entry,) = trees.load(repo.objects, captured.snapshot.tokenizer.tree).entries
    assert (entry.mode, entry.size_bytes, captured.snapshot.tokenizer.probe_ids) == ("file", 8, None)
    assert any("no tokenizer.json" in note for note in captured.annotation.notes)


def test_without_the_library_there_is_no_other_id_but_an_error_with_two_ways_out(root: Path, repo: Repository) -> None:
    class Absent(Tokenizers):
        def version(self) -> str | None:
            return None

    write(root, {"tok/tokenizer.json": "{}"})
    with pytest.raises(MissingExtra) as raised:
        take(root, repo, say(tokenizer={"path": "tok"}), probe=Absent())
    assert "m5ws[tokenizer]" in raised.value.hint and "probe" in raised.value.hint
    captured = take(root, repo, say(tokenizer={"path": "tok", "probe": ""}), probe=Absent())
    assert captured.snapshot.tokenizer is not None and captured.snapshot.tokenizer.probe_ids is None


def test_a_tokenizer_that_is_missing_or_broken_is_an_error(root: Path, repo: Repository) -> None:
    with pytest.raises(NotFound, match="no file at 'tok'"):
        take(root, repo, say(tokenizer={"path": "tok"}))
    write(root, {"tok/tokenizer.json": "{nonsense"})
    with pytest.raises(M5Error, match=r"tokenizer\.json cannot be used"):
        take(root, repo, say(tokenizer={"path": "tok"}), probe=Tokenizers())


# --- the annotation ----------------------------------------------------------------------------------


def test_what_is_said_beside_it(root: Path, repo: Repository) -> None:
    git(root, "remote", "add", "origin", "https://ada:hunter2@example.org/r.git")
    machine = Machine()
    captured = take(root, repo, machine=machine, message=f"try {TOKEN}")
    (said,) = snapshots.annotations(repo, captured.id)
    assert said == captured.annotation
    assert (said.branch, said.remote, said.message) == ("main", "https://example.org/r.git", "try ***")
    assert said.observed is not None
    assert repo.objects.get_record(said.observed, Observed).facts == {"python": "3.11", "threads": "1"}


def test_a_second_annotation_only_for_something_new(root: Path, repo: Repository) -> None:
    machine = Machine()
    first = take(root, repo, machine=machine)
    assert take(root, repo, machine=machine).annotated
    assert (machine.looks, len(snapshots.annotations(repo, first.id))) == (1, 1)
    take(root, repo, machine=machine, message="now with a word")
    assert [said.message for said in snapshots.annotations(repo, first.id)] == [None, "now with a word"]


def test_a_dry_run_writes_nothing_and_says_the_same_id(root: Path, repo: Repository) -> None:
    before = [found.key for found in repo.store.list("")]
    dry = take(root, repo, dry_run=True)
    assert [found.key for found in repo.store.list("")] == before
    real = take(root, repo)
    assert (dry.id, dry.new_bytes) == (real.id, real.new_bytes)


def test_a_store_that_was_lost_is_filled_again(root: Path, repo: Repository, store: LocalStore) -> None:
    first = take(root, repo)
    shutil.rmtree(store.root)
    again = Repository.create(store)
    assert take(root, again).id == first.id
    assert is_published(again, first)
    for tree in first.snapshot.trees.values():
        for entry in trees.load(again.objects, tree).entries:
            trees.read_file(again.objects, entry)


# --- refusals ----------------------------------------------------------------------------------------


def test_secrets_are_refused_all_at_once_and_nothing_is_stored(root: Path, repo: Repository) -> None:
    write(root, {"a.py": f"x\ny = '{TOKEN}'\n", ".env": "A=1\n", "keys/id_rsa": "x", ".env.example": "A=\n"})
    with pytest.raises(SecretsFound) as raised:
        take(root, repo)
    assert [(found.path, found.line) for found in raised.value.findings] == [
        (".env", 1),
        ("a.py", 2),
        ("keys/id_rsa", 0),
    ]
    assert TOKEN not in str(raised.value)
    assert TOKEN.encode() not in stored_bytes(repo)
    assert snapshots.ids(repo) == []


def test_secrets_can_be_excluded_or_allowed(root: Path, repo: Repository) -> None:
    write(root, {"a.py": TOKEN, "fixtures/.env": "A=1\n"})
    captured = take(root, repo, say(code={"exclude": ["a.py"]}, secrets={"allow": ["fixtures"]}))
    assert "fixtures/.env" in names(repo, captured)["code"]
    assert "a.py" not in names(repo, captured)["code"]


def test_what_was_allowed_is_refused_when_it_is_no_more(root: Path, repo: Repository) -> None:
    write(root, {"a.py": TOKEN})
    os.utime(root / "a.py", (1, 1))
    for _ in range(2):
        take(root, repo, say(secrets={"allow": ["a.py"]}))
    for _ in range(2):
        with pytest.raises(SecretsFound):
            take(root, repo)


def test_a_secret_that_comes_later_is_found(root: Path, repo: Repository) -> None:
    take(root, repo)
    write(root, {"config.yaml": f"token: {TOKEN}\n"})
    with pytest.raises(SecretsFound, match=r"config\.yaml:1"):
        take(root, repo)


def test_pointers_of_git_lfs_are_not_content(root: Path, repo: Repository) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    write(root, {"model.bin": pointer})
    with pytest.raises(NotTheContent, match=r"model\.bin"):
        take(root, repo)
    write(root, {"model.bin": "x", "data/a.bin": pointer})
    with pytest.raises(NotTheContent, match=r"data/a\.bin"):
        take(root, repo, say(data={"paths": ["data"]}))


def test_links_to_what_is_not_captured_are_refused(root: Path, repo: Repository, tmp_path: Path) -> None:
    write(tmp_path, {"outside.py": "x"})
    (root / "out").symlink_to("../outside.py")
    (root / "absolute").symlink_to(root / "train.py")
    (root / "dangling").symlink_to("/nonexistent/x")
    with pytest.raises(LinksOutside) as raised:
        take(root, repo)
    assert str(raised.value).count("->") == 2
    code = names(repo, take(root, repo, say(code={"exclude": ["absolute", "out"]})))["code"]
    assert code == [".gitignore", "bin/go", "dangling", "latest", "train.py"]


# --- a workspace that does not hold still --------------------------------------------------------------


class Meddling(Git):
    """Git beside somebody who writes to `path` before the looks whose numbers are given."""

    def __init__(self, path: Path, looks: Sequence[int]) -> None:
        super().__init__()
        self._path, self._looks, self.look = path, looks, 0

    def state(self, root: Path) -> SourceState:
        self.look += 1
        if self.look in self._looks:
            self._path.write_text(f"look {self.look}\n")
        return super().state(root)


@pytest.mark.parametrize("name", ["train.py", "config.yaml", "tok/vocab", "data/x", "brand-new.py"])
def test_a_file_that_changes_meanwhile_is_captured_again(root: Path, repo: Repository, name: str) -> None:
    write(root, {"tok/vocab": "v", "data/x": "x"})
    said = say(tokenizer={"path": "tok"}, data={"paths": ["data"]})
    source = Meddling(root / name, [2])
    captured = take(root, repo, said, source=source)
    assert source.look == 4
    assert captured.id == take(root, repo, said).id
    found = {e.name: e for tree in captured.snapshot.trees.values() for e in trees.load(repo.objects, tree).entries}
    assert trees.read_file(repo.objects, found[name]) == b"look 2\n"


def test_a_file_that_never_holds_still_is_an_error_and_nothing_is_published(root: Path, repo: Repository) -> None:
    with pytest.raises(FileChanged, match="hold still"):
        take(root, repo, source=Meddling(root / "train.py", [2, 4, 6, 8]))
    assert snapshots.ids(repo) == []


def test_a_commit_meanwhile_is_noticed(root: Path, repo: Repository) -> None:
    class Committing(Git):
        looks = 0

        def state(self, root: Path) -> SourceState:
            self.looks += 1
            if self.looks == 2:
                git(root, "commit", "-q", "--allow-empty", "-m", "meanwhile")
            return super().state(root)

    captured = take(root, repo, source=Committing())
    assert captured.snapshot.code.commit == Git().state(root).commit


# --- round trips ---------------------------------------------------------------------------------------

_COMPONENT = st.one_of(
    st.text("aé字 \n\"'\\\t*?[]#!-~", min_size=1, max_size=6).map(str.encode), st.binary(min_size=1, max_size=6)
).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b"..", b".git", b".m5ws"))
_PATH = st.lists(_COMPONENT, min_size=1, max_size=3).map(b"/".join)
_FILE = st.one_of(st.tuples(st.sampled_from([0o644, 0o755, 0o600]), st.binary(max_size=20)), st.just(None))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(_PATH, _FILE, max_size=6))
def test_a_materialised_snapshot_is_the_same_snapshot(
    tmp_path_factory: pytest.TempPathFactory, files: dict[bytes, tuple[int, bytes] | None]
) -> None:
    base = tmp_path_factory.mktemp("trip")
    root = base / "w"
    root.mkdir()
    for path, what in files.items():
        place = os.path.join(os.fsencode(root), path)
        if any(
            os.path.lexists(os.path.join(os.fsencode(root), *path.split(b"/")[:n]))
            for n in range(1, path.count(b"/") + 1)
        ):
            continue
        if os.path.lexists(place):
            continue
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if what is None:
            os.symlink(b"\xff\n dangling", place)
            continue
        with open(place, "wb") as file:
            file.write(what[1])
        os.chmod(place, what[0])
    repo = Repository.create(LocalStore(base / "store"))
    first = take(root, repo)
    parts = [trees.load(repo.objects, tree) for tree in first.snapshot.trees.values()]
    materialise(repo.objects, parts, base / "copy")
    assert take(base / "copy", repo).id == first.id


def test_a_snapshot_record_that_was_lost_is_written_again(root: Path, repo: Repository) -> None:
    settle(root)
    first = take(root, repo)
    repo.store.delete(key(first.id))
    assert take(root, repo).id == first.id
    assert fsck.check(repo).clean
