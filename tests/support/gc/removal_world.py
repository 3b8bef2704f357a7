"""Two stores, and the verbs that write runs, so that a test can run a verb at any write of another verb.

A verb is one command, made of the functions that the command line calls. It asserts at its own end the part of the
protocol that it relies on: nothing that it published rests on a run whose removal existed by then.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

from m5ws.attempts import removal
from m5ws.cli.parameters import transfer as parameters
from m5ws.errors import M5Error
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.gc import RetentionRules
from m5ws.records.ledger import NODE, AttemptEnded, AttemptStarted, Event
from m5ws.records.run import Parent, Run
from m5ws.records.verdict import Verdict
from m5ws.repository import removals
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.gc_plans import RetryPolicy, read_states
from m5ws.repository.publishing import repeated
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import transfer
from m5ws.store.interface import ObjectStore
from tests.support.gc.turns import Serial
from tests.support.records import contents, planted
from tests.support.stores.memory_store import MemoryStore

A = "a" * 12
Wrap = Callable[[ObjectStore], ObjectStore]
"""Wraps the store of a verb, to pause it, kill it, or break a step of its protocol."""


class _Refused(Exception):
    """A verb found no work: the run that it needs is not in its store."""


class RemovalWorld:
    """The store of a workspace, which has run A, and the store of a team. `counts` has the ends of verbs."""

    def __init__(self, wrap: Wrap = lambda store: store) -> None:
        self.home, self.team = MemoryStore(), MemoryStore()
        self.team.url = "team"
        self.wrap = wrap
        self.counts: Counter[str] = Counter()
        self.words: list[str] = []
        self.broken: list[str] = []
        self.saved: defaultdict[str, set[str]] = defaultdict(set)
        self.removed: defaultdict[str, set[str]] = defaultdict(set)
        self._made = 0
        home = Repository.create(self.home)
        Repository.create(self.team)
        snapshot = planted.publish(home, planted.snapshot(planted.packed(home, {b"train.py": b"print(1)"})))
        self._begin(home, planted.run(home, A, snapshot), 1)
        self.counts.clear()

    def verbs(self) -> dict[str, Callable[[], None]]:
        """Return all verbs, each as a command that ends with a result or with an error for the user."""
        named: dict[str, Callable[[], None]] = {
            "resume": self.resume,
            "fork": self.fork,
            "reproduce": self.reproduce,
            "rm": self.rm,
            "gc": self.gc,
            "push": partial(self.copy, self.home, self.team),
            "pull": partial(self.copy, self.team, self.home),
            "rm team": partial(self.rm, True),
        }
        return {name: partial(self._command, name, act) for name, act in named.items()}

    def _command(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
            self.counts[f"{name}: done"] += 1
        except (removals.Removed, transfer.Conflict, removal.RunNeeded) as error:
            self.words.append(str(error))
            self.counts[f"{name}: {type(error).__name__}"] += 1
        except (M5Error, _Refused) as error:
            self.counts[f"{name}: {type(error).__name__}"] += 1

    def _open(self, store: ObjectStore) -> Repository:
        repo = Repository(self.wrap(store), Repository.open(store).format)
        # A gc around this verb cannot end before the verb does.
        repo.patience = RetryPolicy(limit_s=0.0)
        return repo

    # --- verbs ------------------------------------------------------------------------------------

    def resume(self) -> None:
        repo = self._open(self.home)
        removals.refuse(repo, A)
        self._begin(repo, runs.load(repo, A), max(_attempts(repo, A)) + 1)

    def fork(self) -> None:
        repo = self._open(self.home)
        removals.refuse(repo, A)
        label = checkpoints.valid(repo, A)[-1:]
        if not label:
            raise _Refused
        digest = checkpoints.digest(repo, A, label[0])
        parent = Parent(run=A, checkpoint=label[0], step=checkpoints.step_of(label[0]), digest=digest)
        self._new(repo, parent=parent)

    def reproduce(self) -> None:
        repo = self._open(self.home)
        removals.refuse(repo, A)
        replay = self._new(repo, purpose="reproduce", reproduces=A)
        runs.publish_verdict(repo, Verdict(run=A, replay=replay, outcome="reproduced"))
        self._published(repo, A, replay)

    def rm(self, of_team: bool = False) -> None:
        store = self.team if of_team else self.home
        repo = self._open(store)
        if f"runs/{A}/run" not in store.objects:
            raise _Refused
        rest = [run for run, fact in runs.recorded_facts(repo).items() if A in (fact.reproduces, fact.parent)]
        gone = removals.removed_runs(repo)
        now, words = removal.remove(
            repo, removal.plan(repo, [A, *(run for run in rest if run not in gone)], lost=True), "Ada"
        )
        self.words += words
        self.removed[store.url] |= {row.run for row in now}
        self._named(repo, {row.run for row in now}, words)

    def gc(self) -> None:
        for store in (self.home, self.team):
            repo = self._open(store)
            planned = gc.plan(repo, RetentionRules(), -1.0, workers=Serial)
            if planned.id is not None:
                execute.execute(repo, planned.id, "gc", grace_s=0.0, take_over=True, workers=Serial)

    def copy(self, source: MemoryStore, target: MemoryStore) -> None:
        if read_states(target).executing:
            raise _Refused  # A copy waits for an hour.
        here, there = self._open(source), self._open(target)
        before = removals.removed_runs(here)
        present = set(runs.ids(there))
        try:
            transfer.copy(here, there, parameters.select_ids(here, (), True), leave_out=True)
        finally:
            arrived = set(runs.ids(Repository.open(target))) - present
            self._check(arrived & before <= removals.removed_runs(Repository.open(target)), "a copy lost a removal")

    # --- parts of verbs ---------------------------------------------------------------------------

    def _new(self, repo: Repository, **fields: object) -> str:
        self._made += 1
        run = planted.run(repo, f"{self._made:012x}", runs.load(repo, A).snapshot, **fields)
        self._published(repo, run.id, *removals.origins(run))
        self._begin(repo, run, 1)
        return run.id

    def _begin(self, repo: Repository, run: Run, attempt: int) -> None:
        """Begin an attempt as its leader does, publish a checkpoint, and end."""
        valid = checkpoints.valid(repo, run.id)
        resume = valid[-1] if valid else run.parent.checkpoint if run.parent is not None else None
        started = AttemptStarted(attempt=attempt, host=f"host-{attempt}", inherits=tuple(valid), resume=resume)
        planted.append(repo, run.id, attempt, NODE, started)
        ended: Event = AttemptEnded(outcome="interrupted", exit_code=0)
        try:
            removals.refuse(repo, run.id, *removals.origins(run))
            self._published(repo, run.id, *removals.origins(run))
            self._save(repo, run, attempt, checkpoints.step_of(resume) + 1 if resume else 1)
            self._published(repo, run.id, *removals.origins(run))
        finally:
            # A removed run's ledger takes its end.
            planted.append(repo, run.id, attempt, NODE, ended)

    def _save(self, repo: Repository, run: Run, attempt: int, step: int) -> None:
        def save() -> None:
            # Each try is a save of its own: gc may have deleted objects that the first try relied on.
            repo.objects.forget()
            blob = planted.whole(repo.objects, f"{run.id}{step}".encode())
            content = repo.objects.put_record(contents.content(repo.objects, world=1, blobs={"w": blob}))
            saved = Checkpoint(run=run.id, snapshot=run.snapshot, attempt=attempt, step=step, content=content)
            checkpoints.publish(repo, saved, repo.objects.begin())

        repeated(save)
        self.saved[run.id].add(checkpoints.name(step, attempt))

    def _published(self, repo: Repository, *names: str) -> None:
        """Check that a publication that has returned came before the removal of each run that it rests on."""
        store = self.home if repo.store.url == self.home.url else self.team
        self._check(
            all(removals.key(name) not in store.objects for name in names), "a publication did not meet a removal"
        )

    def _named(self, repo: Repository, gone: set[str], meanwhile: list[str]) -> None:
        """Check that `rm` named each run that rests on a removed run, unless that run is removed too."""
        removed = removals.removed_runs(repo)
        for run, fact in runs.recorded_facts(repo).items():
            if run not in removed and gone & {fact.reproduces, fact.parent}:
                self._check(any(run in line for line in meanwhile), f"rm did not name run {run}")

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            self.broken.append(fault)

    # --- the end ----------------------------------------------------------------------------------

    def ends_well(self) -> None:
        """Assert that no verb broke the protocol, that both stores are whole, and that each loss has a word."""
        assert not self.broken, self.broken
        self.wrap = lambda store: store
        self.gc()
        self.gc()
        for store in (self.home, self.team):
            repo = Repository.open(store)
            assert fsck.check(repo).clean, fsck.check(repo).damage
            removed = removals.removed_runs(repo)
            for run in set(runs.ids(repo)) & self.saved.keys() - removed if store is self.home else ():
                assert self.saved[run] <= set(checkpoints.names(repo, run)), (run, self.saved[run])
            assert removed <= self.removed[store.url] | self.removed["memory"], "a run was removed without a word"


def _attempts(repo: Repository, run: str) -> list[int]:
    return [int(name) for name in repo.store.names(f"runs/{run}/ledger/")]
