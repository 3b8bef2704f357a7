"""Help texts and error messages, word for word, in files that `pytest --update-golden` rewrites.

Other tests assert the type, the status and one noun of an error. The wording of messages is here alone, in
`tests/data/golden/errors.txt`, where a change of it is read as a user reads it.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import blake3
import pytest

from m5ws import workspace
from m5ws.cli import reference
from m5ws.environment.observe import machine
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made, Outcome
from tests.support.machine.known_machine import KnownMachine
from tests.support.workspace import golden
from tests.support.workspace.checkouts import write

_COLUMNS = "100"
_PLACEHOLDERS = (
    (r"\b[0-9a-f]{16,}\b", "<digest>"),
    (r"\bobjects/[0-9a-f]{2}/", "objects/<..>/"),
    (r"\b[0-9.]+ (B|KiB)(?= new|,| for)", "<size>"),
)


@pytest.fixture(autouse=True)
def _fixed_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", _COLUMNS)
    for name in ("MLFLOW_TRACKING_URI", *workspace.VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def files(pytestconfig: pytest.Config) -> golden.Golden:
    update = bool(pytestconfig.getoption(golden.FLAG))
    return golden.Golden(update=update, regenerate=f"pytest {golden.FLAG} tests/cli/test_golden.py")


# --- help ------------------------------------------------------------------------------------------


def _help_file(name: str) -> str:
    return f"{'-'.join(name.split()[1:]) or 'm5ws'}.txt"


_NAMES = [name for name, _, _ in reference.commands()]


@pytest.mark.parametrize("name", _NAMES)
def test_help_equals_its_golden_file(m5: M5, files: golden.Golden, name: str) -> None:
    done = m5(*name.split()[1:], "--help")
    assert (done.status, done.err) == (0, "")
    files.check(f"help/{_help_file(name)}", done.out)


def test_no_help_file_is_stale(files: golden.Golden) -> None:
    files.check_names("help", {_help_file(name) for name in _NAMES})


# --- errors ----------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """Command lines that are given in one kind of workspace, each in a copy of its own."""

    title: str
    lines: str
    prepare: Callable[[Path, Made], None] = lambda root, made: None


def _without_workspace(root: Path, made: Made) -> None:
    shutil.rmtree(root)
    root.mkdir()


def _without_store(root: Path, made: Made) -> None:
    shutil.rmtree(root / ".m5ws")


def _newer_store(root: Path, made: Made) -> None:
    newer = b"\x81\xa4type\xa8format/9"
    (root / ".m5ws" / "store" / "format").write_bytes(newer + blake3.blake3(newer).digest())


def _damaged_format(root: Path, made: Made) -> None:
    (root / ".m5ws" / "store" / "format").write_bytes(b"not a record of m5ws, and longer than a checksum")


def _object(root: Path, digest: str) -> Path:
    (path,) = (root / ".m5ws" / "store" / "objects").rglob(digest)
    return path


def _damaged_snapshot(root: Path, made: Made) -> None:
    path = _object(root, made.snapshot)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def _lost_snapshot(root: Path, made: Made) -> None:
    _object(root, made.snapshot).unlink()


def _store_is_a_file(root: Path, made: Made) -> None:
    _without_store(root, made)
    (root / ".m5ws").write_text("")


def _secrets(root: Path, made: Made) -> None:
    write(root, {"keys/id_rsa": "-----BEGIN OPENSSH PRIVATE KEY-----\nMIIEow\n", "upload.py": f"TOKEN = '{_TOKEN}'\n"})


def _bad_config(root: Path, made: Made) -> None:
    write(root, {"config.yaml": "lr: 0.1\nlr: 0.2\n"})


def _no_config(root: Path, made: Made) -> None:
    (root / "config.yaml").unlink()


def _calls(*lines: str) -> str:
    """Return calls of m5ws, one a line."""
    return "\n".join(lines)


def _settings_scene(text: str, line: str, *more: str) -> Scene:
    """Return the scene of an m5ws.toml with this text."""
    title = ["m5ws.toml is", *(f"    {row}" for row in text.splitlines()), *more]
    return Scene("\n".join(title), line, lambda root, made: write(root, {"m5ws.toml": text}))


_TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
_SETTINGS = (
    "nprocs = 2\n",
    "[run]\nnprocs = 2\n",
    "[rum]\nnproc = 2\n",
    "run = 3\n",
    "[run]\nnproc = 'two'\n",
    "[run]\nnproc = 0\nseed = -1\n",
    "[run]\ncheckpoint_minutes = 0\n",
    "[run\nnproc = 2\n",
    "[determinism]\nlevel = 'total'\n",
    "[determinism]\nlevel = 'off'\ntf32 = true\n",
    "[store]\nurl = ''\n",
    "[store]\nregion = 'eu-west-1'\n",
    "[store]\nurl = 's3://'\n",
    "[store]\nurl = 'ftp://example.org/store'\n",
    "[store]\nurl = 's3://bucket/store'\ncache_limit = 'much'\n",
    "[data]\npaths = ['../data']\n",
    "[tokenizer]\nprobe = 'words'\n",
    "[mlflow]\nenabled = false\nexperiment = 'mine'\n",
    "[retention]\nlast = 0\n",
)
_MISSING = ("[data]\npaths = ['data']\n", "[tokenizer]\npath = 'tok'\n", "[config]\nfiles = ['conf/base.yaml']\n")

_SCENES = (
    Scene(
        "verbs, options and arguments",
        _calls(
            "snapshto",
            "nonsense",
            "--nonsense",
            "checkpoint nonsense",
            "ls --nonsense",
            "run --checkpoint-evry 5",
            "show",
            "checkpoint diff 7c1d00000001",
            "checkpoint export 7c1d00000001 out",
            "push --all",
            "ls more",
            "run --nproc 0",
            "run --nproc two",
            "run --trainer mpi",
            "run --checkpoint-minutes 0",
            "run --name",
            "reproduce 7c1d00000001 --env sometimes",
            "certify --steps 1",
            "gc --older-than soon",
            "gc --grace -1d",
            "ui --port 99999",
            "-C nowhere ls",
        ),
    ),
    Scene(
        "ids and names",
        _calls(
            "show beef",
            "show 7c1d",
            "diff <snapshot> beef",
            "reproduce beef",
            "reproduce <snapshot>",
            "reproduce 7c1d00000001 --snapshot beef",
            "reproduce 7c1d00000001 --segment 9",
            "reproduce 7c1d00000001 --from 7 --to 9",
            "run beef",
            "resume beef",
            "resume 7c1d00000001",
            "fork 7c1d00000001@9",
            "fork 7c1d00000001@last",
            "logs beef",
            "watch beef",
            "logs 7c1d00000001 --rank 5",
            "logs 7c1d00000001 --attempt 4",
            "logs 7c1d00000002",
            "logs <snapshot>",
            "cause beef",
            "cause 7c1d00000001 --attempt 4",
            "cause 7c1d00000002 --attempt 2",
            "checkpoint ls beef",
            "checkpoint show 7c1d00000001@9",
            "checkpoint keep 7c1d00000001@3-2",
            "checkpoint export 7c1d00000001 . --format hf",
            "checkout beef out",
            "checkout <snapshot> .",
            "checkout <snapshot> train.py",
            "prefetch beef",
            "push beef --to other",
            "pull 7c1d00000001 --from nowhere",
            "pull 7c1d00000001 --from .m5ws/store",
            "pull 7c1d00000001 --from ftp://example.org/store",
            "attest beef",
            "attest 7c1d00000001 -o train.py",
            "attest 7c1d00000001 -o nowhere/verdict.json",
            "verify nothing.json",
            "verify train.py",
            "bisect 7c1d00000001 beef",
            "bisect 7c1d00000001 7c1d00000002",
            "gc --execute beef",
            "init",
            "init --template no-such other",
            "init --store ftp://example.org/store other",
            "ui",
        ),
    ),
    Scene(
        "options that exclude or need each other",
        _calls(
            "resume 7c1d00000001 --set lr=1",
            "resume 7c1d00000001 --at 1 --from-scratch",
            "resume 7c1d00000001 --parallel 2",
            "resume 7c1d00000001 -- train.py",
            "run --take-over",
            "run --env rebuild",
            "fork 7c1d00000001 train.py",
            "sweep lr=1,2 train.py",
            "sweep lr=1,2 --restart data",
            "sweep lr=1,2 --from 7c1d00000001@3 -m late",
            "reproduce 7c1d00000001 -- train.py --lr 2",
            "reproduce 7c1d00000001 --segment 1 --all-segments",
            "reproduce 7c1d00000001 --segment 1 --seed 2 --set lr=1",
            "reproduce 7c1d00000001 --env warn --env rebuild --env fail",
            "push --to other",
            "push 7c1d00000001 --all --to other",
            "logs 7c1d00000001 --follow --json",
            "gc --take-over",
            "gc --dry-run --execute beef",
            "init --region eu-west-1 other",
            "checkpoint export 7c1d00000001 out --format hf --tensors all",
        ),
    ),
    Scene(
        "the command of a run",
        _calls(
            "run <snapshot>",
            "run <snapshot> -- torchrun --nproc-per-node 2",
            "run <snapshot> -- python other.py",
            "run <snapshot> --nproc 4 -- torchrun --nproc-per-node 2 train.py",
            "run <snapshot> -- jsrun train.py",
            "run --epochs 3 -- train.py",
            "run -q train.py",
            "run <snapshot> -- other.py",
            "run <snapshot> -- ../train.py",
            "run <snapshot> --trainer python --nproc 2 -- train.py",
            "run <snapshot> -- train.py --token=<token>",
            "run <snapshot> --set lr -- train.py",
            "run <snapshot> --set lrr=1 -- train.py",
            "run <snapshot> --set +lr=1 -- train.py",
            "run <snapshot> --set lr=[1 -- train.py",
            "run <snapshot> --set other.yaml:lr=1 -- train.py",
        ),
    ),
    *(_settings_scene(text, "ls") for text in _SETTINGS),
    *(_settings_scene(text, "snapshot", "and that file is missing") for text in _MISSING),
    Scene("a private key and a token are in the working tree", "snapshot\nrun -- train.py", _secrets),
    Scene("config.yaml has a key twice", "snapshot\nrun --set lr=1 -- train.py", _bad_config),
    Scene("config.yaml was deleted", "run --set lr=1 -- train.py", _no_config),
    Scene(
        "no workspace", "ls\nsnapshot\npull 7c1d --from elsewhere\nverify nothing.json --no-store", _without_workspace
    ),
    Scene("a workspace without a store", "ls\nreproduce beef\nfsck\npush --all --to other", _without_store),
    Scene("the store's folder is a file", "snapshot\nls", _store_is_a_file),
    Scene("the store was made by a newer m5ws", "ls", _newer_store),
    Scene("the file store/format is damaged", "ls\nfsck", _damaged_format),
    Scene(
        "the record of a snapshot is damaged",
        "show <snapshot>\ncheckout <snapshot> out\nrun <snapshot> -- train.py\nreproduce 7c1d00000001\nfsck",
        _damaged_snapshot,
    ),
    Scene(
        "the record of a snapshot is missing",
        "show <snapshot>\ncheckout <snapshot> out\nreproduce 7c1d00000001\nfsck",
        _lost_snapshot,
    ),
)


def _known(text: str, places: Mapping[str, str]) -> str:
    """Replace what differs from call to call, or with a record's content, by its placeholder."""
    for value, placeholder in places.items():
        text = text.replace(value, placeholder)
    for pattern, placeholder in _PLACEHOLDERS:
        text = re.sub(pattern, placeholder, text)
    return text


def _block(line: str, done: Outcome, known: Mapping[str, str]) -> str:
    """Return a call as the golden file has it, stdout before stderr."""
    printed = [f"stdout: {row}".rstrip() for row in _known(done.out, known).splitlines()]
    return "\n".join([f"$ m5ws {line}", f"status {done.status}", *printed, *_known(done.err, known).splitlines()])


def test_errors_equal_their_golden_file(
    m5: M5,
    files: golden.Golden,
    home: Repository,
    made: Made,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The facts of this machine are not looked at: it takes a process that imports torch.
    monkeypatch.setattr(machine, "Machine", KnownMachine)
    root = tmp_path / "copy" / "small"
    known = {str(root): "<dir>", made.snapshot: "<snapshot>", made.snapshot[:16]: "<snapshot>"}
    blocks: list[str] = []
    for scene in _SCENES:
        shutil.rmtree(root.parent, ignore_errors=True)
        shutil.copytree(place, root, symlinks=True)
        scene.prepare(root, made)
        monkeypatch.chdir(root)
        blocks.append("\n".join(f"# {row}" for row in scene.title.splitlines()))
        for line in map(str.strip, scene.lines.strip().splitlines()):
            words = shlex.split(line.replace("<snapshot>", made.snapshot).replace("<token>", _TOKEN))
            done = m5("-C", root, *words)
            assert done.status != 0, f"m5ws {line} is no error: {done.out}{done.err}"
            blocks.append(_block(line, done, known))
    files.check("errors.txt", "\n\n".join(blocks) + "\n")
