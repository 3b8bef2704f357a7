"""Runs of real scripts in real ranks, without a supervisor: a small version of the supervisor's work."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.determinism import environment
from m5ws.records.environment import Determinism
from m5ws.records.launch import Context, LocalInstall, Saving, Trace
from m5ws.records.ledger import AnyEvent, CheckpointPublished, Notice, State, Step
from m5ws.records.run import LaunchSpec
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader, SpoolWriter, genesis
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.training.checkpoint import checkpointing
from m5ws.training.runtime import context
from m5ws.training.runtime.stop import StopRequest
from tests.support.ranks import forks, zero_lab
from tests.support.ranks.orders import orders
from tests.support.records import planted
from tests.support.workspace.checkouts import write

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Attempt:
    """The results of one attempt: its exit status, and each rank's events."""

    status: int
    events: dict[int, list[AnyEvent]]
    directory: Path

    def of(self, kind: type, rank: int = 0) -> list[AnyEvent]:
        return [event for event in self.events.get(rank, []) if isinstance(event, kind)]

    def steps(self, rank: int) -> dict[int, tuple[dict[str, str], str | None]]:
        """Map each step number to all compared values of the step."""
        return {e.step: (e.quantities, e.batch) for e in self.of(Step, rank) if isinstance(e, Step)}

    def states(self, rank: int) -> dict[int, tuple[dict[str, str], dict[str, str]]]:
        return {e.step: (e.tensors, e.generators) for e in self.of(State, rank) if isinstance(e, State)}

    @property
    def contents(self) -> dict[int, Digest]:
        return {e.step: e.content for e in self.of(CheckpointPublished) if isinstance(e, CheckpointPublished)}

    @property
    def newest(self) -> Digest | None:
        found = [e.checkpoint for e in self.of(CheckpointPublished) if isinstance(e, CheckpointPublished)]
        return found[-1] if found else None

    def notices(self, kind: str, rank: int = 0) -> list[str]:
        return [e.message for e in self.of(Notice, rank) if isinstance(e, Notice) and e.kind == kind]

    def log(self, rank: int = 0) -> str:
        return (self.directory / "log" / f"rank-{rank}.log").read_text()


@dataclass
class Runner:
    """Starts attempts of one run, each resuming from a given checkpoint."""

    repo: Repository
    tmp: Path
    parents: forks.ForkParents
    run: str = "000000000001"
    attempts: int = field(default=0)
    saving: Saving = field(default_factory=Saving)
    determinism: Determinism = field(default_factory=Determinism)
    trace: Trace | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    local_installs: tuple[LocalInstall, ...] = ()
    observe: bool = False
    directory: Path = Path()
    """The directory of the newest attempt."""

    def context(self, spec: LaunchSpec, resume: Digest | None = None) -> tuple[Context, Path]:
        """Begin an attempt as the supervisor does, and return its context."""
        self.attempts += 1
        directory = self.tmp / f"{self.run}-{self.attempts}"
        self.directory = directory
        (directory / "work").mkdir(parents=True)
        write(directory / "work", self.inputs)
        said = orders(
            directory,
            store=self.repo.store.url,
            run=self.run,
            attempt=self.attempts,
            spec=spec,
            author_dir=str(self.tmp / "author"),
            resume=resume,
            saving=self.saving,
            determinism=self.determinism,
            trace=self.trace,
            local_installs=self.local_installs,
        )
        planted.begin(self.repo, self.run, self.attempts, inherits=tuple(checkpoints.valid(self.repo, self.run)))
        return said, directory

    def left(self, directory: Path, status: int = 0) -> Attempt:
        """Return the results of an attempt from its directory."""
        return Attempt(status, read_spools(directory), directory)

    def __call__(
        self,
        *command: str,
        ranks: int = 1,
        resume: Digest | None = None,
        kill: str = "",
        environ: dict[str, str] | None = None,
    ) -> Attempt:
        """Run a command on `ranks` ranks to its end; `kill` is "RANK:STEP:SIGNAL" for tiny.py."""
        orders, directory = self.context(
            LaunchSpec(command=command, nproc=ranks, seed=11, observe=self.observe), resume
        )
        path = directory / "context"
        path.write_bytes(codec.encode(orders))
        told = {"M5WS_CONTEXT": str(path), "TINY_KILL": kill, **(environ or {})}
        status, _ = forks.run(
            self.parents,
            *("-m", "m5ws.training.rank", *command),
            directory=directory / "work",
            log=directory / "launcher.log",
            ranks=ranks if ranks > 1 else None,
            deepspeed="deepspeed" in command[0],
            environment=environment(orders.determinism) | told,
        )
        return self.left(directory, status)


def read_spools(directory: Path) -> dict[int, list[AnyEvent]]:
    return {
        int(path.stem): [ledger.decode_event(event) for event in SpoolReader(path).read()]
        for path in sorted((directory / "spool").glob("*.spool"))
    }


@dataclass
class InProcess:
    """Attempts of a single-process run inside the test's own process: the same code, without the start-up."""

    runner: Runner

    def __call__(
        self,
        script: Callable[[], None],
        *,
        resume: Digest | None = None,
        repo: Repository | None = None,
        minutes: float | None = None,
        **orders_more: Any,
    ) -> tuple[Attempt, BaseException | None]:
        """Run `script` as rank 0 of a new attempt; return its results and the error that ended it."""
        spec = LaunchSpec(command=("script",), seed=11, checkpoint_minutes=minutes)
        orders, directory = self.runner.context(spec, resume)
        orders = msgspec.structs.replace(orders, **orders_more)
        spool = SpoolWriter(directory / "spool" / "0.spool", genesis(orders.run, orders.attempt, "0"))
        stop = StopRequest(directory / "spool" / "processes")
        error: BaseException | None = None
        context.activate(context.ActiveRank(orders, repo or self.runner.repo, spool, stop, 0, 1))
        try:
            script()
        except (Exception, SystemExit) as raised:  # noqa: BLE001  the test looks at whatever it is
            error = raised
        finally:
            context.activate(None)
        return Attempt(0 if error is None else 1, read_spools(directory), directory), error


@pytest.fixture
def in_process(runner: Runner, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> InProcess:
    """Ranks in the test's own process; in campaigns, failed saves are retried almost at once."""
    if request.node.get_closest_marker("soak") is None:
        monkeypatch.setattr(checkpointing, "_PAUSE_S", 0.01)
    return InProcess(runner)


@pytest.fixture
def runner(repo: Repository, tmp_path: Path, fork_parents: forks.ForkParents) -> Runner:
    return Runner(repo, tmp_path, fork_parents)


@pytest.fixture(scope="session")
def tiny_module() -> ModuleType:
    """tiny.py, to be run inside the test's own process."""
    spec = importlib.util.spec_from_file_location("tiny", SCRIPTS / "tiny.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tiny() -> str:
    return str(SCRIPTS / "tiny.py")


@pytest.fixture(scope="session")
def operator() -> Path:
    """CPUAdam's operator, built before any rank needs it."""
    return zero_lab.build_operator()
