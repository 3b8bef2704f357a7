"""A run belongs to its store: it resumes in any workspace that reaches the store, and ends with the same bits."""

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.runs import history
from m5ws.store import open_store
from m5ws.store.interface import Buffer
from m5ws.store.local import LocalStore
from tests.support.campaigns import soak_page
from tests.support.faults.kills import Scale
from tests.support.paths import ROOT
from tests.support.ranks.warm import Ended, Warm
from tests.support.records.histories import assert_alike, assert_equal
from tests.support.waiting import wait_for
from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import Workspace, make_workspace

_SCRIPT = Path(__file__).parent / "scripts" / "elsewhere.py"
_SUPERSEDED = 4
_KILLED = 3
"""Number of killed attempts, of four."""
_TIMEOUT_S = 120
_PATHS = {"PYTHONPATH": str(ROOT)}
"""The value in the processes of `Warm`, since it is a part of the environment."""
_HEADER = (
    "| trainer | seed | runs | attempts killed | of them with ranks that lived on | resumed elsewhere | seconds |",
    "|---|---|---|---|---|---|---|",
)


class _Places(msgspec.Struct, frozen=True):
    """Workspaces that share a store, and the processes that work in them."""

    homes: tuple[Workspace, ...]
    store: str
    warm: Warm

    @property
    def repo(self) -> Repository:
        return Repository.open(open_store(self.store))

    def m5ws(self, where: int, *words: str, moment_s: float | None = None) -> tuple[int | None, str]:
        """Return the exit status, None if the process was killed, and the whole output."""
        done: Ended = self.warm.run("m5ws", self.homes[where].root, *words, moment_s=moment_s)
        if done.killed:
            return None, ""
        status, _, output = done.said.partition("\n")
        return int(status), output

    def history(self, run: str) -> history.History:
        return history.load(self.repo, run)

    def kill_ranks(self, where: int, run: str = "") -> None:
        """Kill all ranks of a run on one machine, or of all its runs: the processes that write their logs."""
        directory = str(self.homes[where].root / ".m5ws" / "runs" / run)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "fd" / "1").startswith(directory):
                    os.kill(int(process.name), signal.SIGKILL)
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue


def _plain(workspace: Workspace) -> None:
    """Make the script train in one process, without process groups."""
    for line in ("fully_shard(model.up)\n", "fully_shard(model)\n", 'dist.init_process_group("gloo")\n'):
        workspace.edit("train.py", line, "")
    workspace.edit("train.py", "rank = dist.get_rank()", "rank = 0")
    workspace.edit("train.py", "dist.destroy_process_group()\n", "")


_TRAINERS = ["plain", pytest.param("fsdp", marks=pytest.mark.soak), pytest.param("zero", marks=pytest.mark.soak)]


@pytest.fixture(scope="module", params=_TRAINERS)
def trainer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def places(trainer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Places]:
    folder = tmp_path_factory.mktemp(trainer)
    starts = {"fsdp": "torchrun", "zero": "deepspeed", "plain": "python"}[trainer]
    script = "zero.py" if trainer == "zero" else "fsdp.py"
    first = make_workspace(folder / "a", script, trainer=starts, nproc=1 if trainer == "plain" else 2)
    if trainer == "plain":
        _plain(first)
    first.edit("config.yaml", "hidden: 128", "hidden: 32")
    first.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.05")
    with open(first.root / "m5ws.toml", "a", encoding="utf-8") as settings:
        settings.write(f'\n[store]\nurl = "{folder / "store"}"\n')
    git(first.root, "add", "--all")
    git(first.root, "commit", "--quiet", "--message", "its settings")
    others = []
    for name in ("b", "c"):
        git(folder, "clone", "--quiet", str(first.root), str(folder / name))
        others.append(Workspace(folder / name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKS_USE_DEEPSPEED", str(int(trainer == "zero")))
        with Warm(_SCRIPT) as warm:
            yield _Places((first, *others), str(folder / "store"), warm)


@pytest.fixture(scope="module")
def whole(places: _Places) -> tuple[history.History, float]:
    """Return an undisturbed run, and the seconds that one takes."""
    run, seconds = "", 0.0
    # The first run starts the parent process of the forks.
    for _ in range(2):
        began_s = time.monotonic()
        status, output = places.m5ws(0, "run", "--json")
        assert status == 0, output
        run, seconds = json.JSONDecoder().raw_decode(output)[0]["run"]["id"], time.monotonic() - began_s
    return places.history(run), seconds


def _chain(repo: Repository, run: str, attempt: int) -> dict[str, bytes]:
    stats = repo.store.list(f"runs/{run}/ledger/{attempt:04d}/")
    return {stat.key: repo.store.get(stat.key) for stat in stats}


class _Count(msgspec.Struct):
    runs: int = 0
    killed: int = 0
    living: int = 0
    resumed: int = 0
    seconds: float = 0.0
    """Duration of a recent whole run, from which kill times are drawn. Other work on the machine changes it."""


def _one_run(places: _Places, whole: tuple[history.History, float], draw: random.Random, count: _Count) -> None:
    """Start a run, kill its attempts, and resume each on another machine until it finishes; then judge it."""
    repo, known = places.repo, set(runs.ids(places.repo))
    where, command, attempts = draw.randrange(len(places.homes)), ["run"], 0
    while True:
        # Few kills are early, before an attempt begins.
        late_s = count.seconds * draw.random() ** 0.5
        moment_s = late_s if draw.randrange(4) < _KILLED and attempts < 4 else None
        began_s = time.monotonic()
        status, output = places.m5ws(where, *command, "--no-progress", moment_s=moment_s)
        if "has finished" in output:
            break  # It was killed after its run had ended, or by a command that completed it and was killed too.
        assert status in (0, None), output
        if status == 0 and command == ["run"]:
            count.seconds = time.monotonic() - began_s
        [*begun] = set(runs.ids(repo)) - known
        if status == 0:
            break
        count.killed += 1
        if not begun:
            # Its ranks wait for ever for the permission to begin: forks do not end with their supervisor.
            places.kill_ranks(where)
            continue
        [run] = begun
        if draw.random() < 0.5:
            places.kill_ranks(where, run)
        else:
            count.living += 1
        made, others = ledger.attempts(repo, run), [place for place in range(len(places.homes)) if place != where]
        elsewhere = draw.choice(others)
        # Real ranks hold a lock, so no second attempt runs beside them on one machine. Forks hold no lock.
        places.kill_ranks(elsewhere, run)
        if made and len(made) > attempts:
            attempts = len(made)
            before, (status, output) = _chain(repo, run, made[-1]), places.m5ws(elsewhere, "resume", run)
            is_refused = status == 2 and "--take-over" in output
            assert "has finished" in output or (is_refused and _chain(repo, run, made[-1]) == before), output
        if not made:
            # A run that was killed before its first attempt began belongs to no machine.
            places.kill_ranks(where, run)
            known, command, attempts = known | {run}, ["run"], 0
            continue
        where, command = elsewhere, ["resume", run, "--take-over", "--from-scratch"]
        count.resumed += 1
    [run] = set(runs.ids(repo)) - known
    count.runs += 1
    # Events that a machine had not published are missing, as if the machine were lost.
    assert_alike(whole[0], places.history(run))
    assert places.history(run).contents.keys() == whole[0].contents.keys()
    assert not [problem for problem in fsck.check(repo).damage if run in problem.key]
    # Each machine delivers its own events when it is used again, and nothing else.
    for place in range(len(places.homes)):
        places.kill_ranks(place, run)
        assert places.m5ws(place, "ls")[0] == 0
    assert_equal(whole[0], places.history(run))
    for attempt in ledger.attempts(repo, run):
        ends = [isinstance(event, AttemptEnded) for event in ledger.events(repo, run, attempt, NODE)]
        assert ends[-1] and sum(ends) == 1, (run, attempt)


_SCALES = [
    pytest.param(Scale(1), marks=pytest.mark.soak),
    pytest.param(Scale(170, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(14400)]),
]


@pytest.mark.parametrize("scale", _SCALES)
def test_a_run_killed_at_random_moments_resumes_on_another_machine_to_equal_bits(
    places: _Places, whole: tuple[history.History, float], trainer: str, scale: Scale
) -> None:
    began_s, seed = time.monotonic(), scale.seed()
    draw, count = random.Random(seed), _Count(seconds=whole[1])
    while count.resumed < scale.kills:
        _one_run(places, whole, draw, count)
        numbers = (seed, count.runs, count.killed, count.living, count.resumed, f"{time.monotonic() - began_s:,.0f}")
        print(row := "| " + " | ".join(map(str, (trainer, *numbers))) + " |")
        if scale.soak:
            soak_page.put("elsewhere", _HEADER, row)
    assert fsck.check(places.repo, read_data=True).damage == ()


@pytest.fixture
def held(places: _Places, tmp_path: Path) -> Iterator[Path]:
    """Return a file. While it exists, a training in the first workspace pauses after step 6."""
    file = tmp_path / "held"
    file.touch()
    workspace = places.homes[0]
    old = (workspace.root / "train.py").read_text()
    here = f"{str(workspace.root)!r} in os.environ['M5WS_CONTEXT']"
    condition = f"step.number == 6 and os.path.exists({str(file)!r}) and {here}"
    workspace.edit("train.py", 'time.sleep(settings["pause_s"])', f"while {condition}:\n        time.sleep(0.05)")
    workspace.edit("train.py", "import time\n", "import os\nimport time\n")
    yield file
    file.unlink(missing_ok=True)
    (workspace.root / "train.py").write_text(old)


def test_another_machine_can_read_and_take_over_a_live_run(
    places: _Places, held: Path, whole: tuple[history.History, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, known = places.repo, set(runs.ids(places.repo))
    ended: list[tuple[int | None, str]] = []
    first = threading.Thread(target=lambda: ended.append(places.m5ws(0, "run", "--no-progress")))
    first.start()
    run = wait_for(lambda: next(iter(set(runs.ids(repo)) - known), None))
    wait_for(lambda: 4 in (so_far := places.history(run)).contents and so_far.last_step >= 5)
    written: list[str] = []
    create = LocalStore.create

    def noted(store: LocalStore, key: str, data: Buffer) -> None:
        written.append(key)
        create(store, key, data)

    monkeypatch.setattr(LocalStore, "create", noted)
    there = places.homes[1]
    for words in (["ls"], ["show", run], ["fsck"], ["gc"], ["gc", "--dry-run"], ["logs", run], ["snapshot"]):
        there.m5ws(*words, expect=None, environment=_PATHS)
    judged = json.loads(there.m5ws("reproduce", "--json", run, environment=_PATHS).stdout)
    assert judged["outcome"] == "sampled" and "end of the original is not recorded" in judged["sentence"]
    refused = there.m5ws("resume", run, expect=2, environment=_PATHS).stderr
    assert (
        os.uname().nodename in refused
        and re.search(r"last sign of life is \d:\d\d:\d\d", refused)
        and "--take-over" in refused
    )
    assert not [key for key in written if key.startswith(f"runs/{run}/")]
    there.m5ws("resume", run, "--take-over", "--no-progress", environment=_PATHS)
    assert not [key for key in written if key.startswith(f"runs/{run}/ledger/0001")]
    held.unlink()
    first.join(_TIMEOUT_S)
    [(status, output)] = ended
    assert status == _SUPERSEDED and "attempt 2" in output and os.uname().nodename in output, output
    assert_equal(whole[0], places.history(run))
    outcomes = [ledger.events(repo, run, attempt, NODE)[-1] for attempt in (1, 2)]
    assert [event.outcome for event in outcomes if isinstance(event, AttemptEnded)] == ["interrupted", "finished"]
    assert fsck.check(repo).damage == ()


def _killed(places: _Places, file: Path) -> str:
    """Run a training that pauses after step 6, and return its id. All is killed once a checkpoint is published."""
    known, ended = set(runs.ids(places.repo)), list[Ended]()
    command = ("mute", places.homes[0].root, "run", "--no-progress")
    started = threading.Thread(target=lambda: ended.append(places.warm.run(*command, until=file)))
    started.start()
    try:
        run = wait_for(lambda: next(iter(set(runs.ids(places.repo)) - known), None))
        wait_for(lambda: checkpoints.valid(places.repo, run))
    finally:
        file.touch()
        started.join(_TIMEOUT_S)
    places.kill_ranks(0, run)
    assert ended[0].killed
    return run


def test_steps_lost_with_a_machine_are_named_and_are_no_divergence(
    places: _Places, held: Path, whole: tuple[history.History, float]
) -> None:
    run = _killed(places, held.with_name("saved"))
    assert places.history(run).last_step == 0
    assert [checkpoints.step_of(name) for name in checkpoints.valid(places.repo, run)] == [4]
    assert places.m5ws(1, "resume", run, "--take-over")[0] == 0
    recorded = places.history(run)
    assert_alike(whole[0], recorded)
    assert 1 not in recorded.steps[0] and recorded.last_step == 10 and fsck.check(places.repo).damage == ()
    status, output = places.m5ws(1, "reproduce", "--json", run)
    verdict = json.JSONDecoder().raw_decode(output)[0]
    assert (status, verdict["outcome"]) == (0, "reproduced"), output
    assert any("not in its record" in gap["sentence"] for gap in verdict["not_compared"]), verdict["not_compared"]
