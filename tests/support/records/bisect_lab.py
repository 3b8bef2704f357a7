"""Two runs whose ranks follow a rule of the test, and their bisection, all in the process of the test."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from m5ws.agent.ports import Ports
from m5ws.attempts import leader, planning
from m5ws.bisect import bisect
from m5ws.bisect.bisect import BisectReport
from m5ws.bisect.trials import Trial, TrialListeners
from m5ws.errors import UsageError
from m5ws.launch import launch_request
from m5ws.records import codec
from m5ws.records.environment import Declared, Determinism, Observed
from m5ws.records.failure import Failure
from m5ws.records.launch import ADMITTED, OBSERVED, Context, LaunchRequest, Observing
from m5ws.records.ledger import RankEnded, RankStarted, Step
from m5ws.records.recipe import Recipe
from m5ws.records.run import LaunchSpec
from m5ws.records.snapshot import Annotation, Code, Snapshot
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.references import runs, snapshots
from m5ws.repository.repository import Repository

Rule = Callable[[frozenset[str], int], float | None]
"""Maps the letters of BAD's files and a step to its loss. None ends the training before that step."""

_STEPS = 6


class Crash(Exception):
    """The script fails at this step."""


class OneRank:
    """A `Process` whose one rank follows the rule at once when it is admitted."""

    pid = 0

    def __init__(self, follow: Callable[[], int], admitted: Path) -> None:
        self._follow, self._admitted = follow, admitted
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None and self._admitted.exists():
            self._status = self._follow()
        return self._status

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        self._status = 130
        return self._status

    def facts(self) -> dict[str, str]:
        return {}


class Ranks:
    """A `Launcher` of such ranks. `facts` and `installed` are the environment that they observe.

    `begun` counts the attempts that began. Ctrl-C comes at the attempt with the number `stop_at`.
    """

    def __init__(self) -> None:
        self.rule: Rule = lambda bad, step: 0.0
        self.stop_at: int | None = None
        self.session = True
        self.begun = 0
        self.facts: dict[str, str | None] = {"torch": "2.13", "python": "3.11.7"}
        self.installed: dict[str, str] = {}

    def can_mount(self, folder: str, path: str) -> bool:
        return False

    def launch(self, request: LaunchRequest) -> OneRank:
        path = request.environment[launch_request.CONTEXT_VARIABLE]
        context = codec.decode(Path(path).read_bytes(), Context, path)
        observed = Observed(facts=dict(self.facts), distributions=dict(self.installed))
        Path(context.spool_dir, OBSERVED).write_bytes(codec.encode(observed))
        return OneRank(partial(self._follow, context), Path(context.spool_dir, ADMITTED))

    def _follow(self, context: Context) -> int:
        """Write the events of a rank, and return its exit status."""
        self.begun += 1
        if self.begun == self.stop_at:
            raise KeyboardInterrupt
        bad = frozenset(file.stem for file in Path(context.work_dir).glob("*.py") if file.read_text() == "bad")
        bad |= {name for name, version in self.installed.items() if version == "2.0"}
        spool = SpoolWriter(Path(context.spool_dir) / "0.spool", genesis(context.run, context.attempt, "0"))
        spool.append(RankStarted(rank=0, world=1, pid=1))
        if not self.session:
            spool.close()
            out = Path(context.work_dir) / "out"
            out.mkdir(exist_ok=True)
            (out / "loss.txt").write_text(str(self.rule(bad, 1)))
            return 0
        try:
            for step in range(1, (context.until or _STEPS) + 1):
                loss = self.rule(bad, step)
                if loss is None:
                    break
                spool.append(Step(step=step, quantities={"loss": loss.hex()}))
        except Crash:
            spool.append(RankEnded(rank=0, failure=Failure(type="Crash")))
            return 1
        finally:
            spool.close()
        return 0


class Lab:
    """Two runs of a rule: GOOD's files contain `good`, BAD's `bad`."""

    def __init__(self, repo: Repository, folder: Path) -> None:
        self.ranks = Ranks()
        self.ports = Ports(
            repo=repo,
            launcher=self.ranks,
            observing=Observing(),
            tracker=None,
            environment={},
            work_root=folder.with_name(f"{folder.name}-work"),
        )
        self._folder = folder
        self.good = self.bad = ""
        self.built: list[Recipe] = []

    def train(self, letters: str, rule: Rule) -> None:
        self.ranks.rule = rule
        self.good, self.bad = self.run(letters, "good"), self.run(letters, "bad")

    def run(self, letters: str, text: str) -> str:
        repo, folder = self.ports.repo, self._folder / text
        folder.mkdir()
        for letter in letters:
            (folder / f"{letter}.py").write_text(text)
        sources = [SourceFile(path=f"{letter}.py".encode(), location=folder / f"{letter}.py") for letter in letters]
        empty = trees.write_tree(repo.objects, []).digest
        record = Snapshot(
            code=Code(commit=None, dirty=True, tree=trees.write_tree(repo.objects, sources).digest),
            config=empty,
            tokenizer=None,
            datasets=(),
            declared=Declared(),
            determinism=Determinism(),
        )
        snapshot = snapshots.publish(repo, record, Annotation(created_s=1.0))
        return self._trained(snapshot)

    def again(self, name: str) -> str:
        """Train with the inputs of a run once more, and return the new run's id."""
        return self._trained(runs.load(self.ports.repo, name).snapshot)

    def _trained(self, snapshot: str) -> str:
        repo = self.ports.repo
        new = planning.new_run(snapshot, LaunchSpec(command=("a.py",), outputs=("out",)))
        leader.execute(self.ports, planning.plan(repo, new, self._folder / "home", self._folder, {}))
        return new.id

    def install(self, **versions: str) -> None:
        """Set the distributions of the environment in which runs begin."""
        self.ranks.installed = versions

    def rebuilt(self, recipe: Recipe) -> Ports:
        """Return the ports of runs in a recipe's environment, with the distributions of its requirements."""
        self.built.append(recipe)
        there = Lab(self.ports.repo, self._folder)
        there.ranks.rule = self.ranks.rule
        there.install(**{requirement.name: requirement.version for requirement in recipe.requirements})
        if "9.9" in there.ranks.installed.values():
            raise UsageError("no such version")
        return there.ports

    def bisect(self, max_runs: int = 100, *, rebuild: bool = False) -> BisectReport:
        task = bisect.plan(self.ports, self.good, self.bad, rebuilt=rebuild)
        trials: list[Trial] = []
        shown = TrialListeners(
            begin=lambda taken, name: None,
            on_trial=trials.append,
            watch=lambda rank, event: None,
            prepare=lambda what, done, total: None,
        )
        rebuilt = self.rebuilt if rebuild else None
        report = bisect.execute(self.ports, task, self._folder / "home", self._folder, max_runs, shown, rebuilt)
        assert tuple(trials) == report.trials
        return report
