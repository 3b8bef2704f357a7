"""gc against a model. Hypothesis chooses the next store operation, kills, and new actors."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from m5ws.errors import M5Error
from m5ws.records.gc import RetentionRules
from m5ws.repository.gc import execute as gc_execute
from m5ws.repository.gc import gc
from m5ws.repository.repository import Repository
from tests.support.gc.gc_world import World
from tests.support.gc.turns import Actor, Serial, TurnStore

_CONTENTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3, unique=True)


class Collecting(RuleBasedStateMachine):
    """Writers that publish or abandon their uploads, planners, and at most one executor at a time."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.writers: list[Actor] = []
        self.planners: list[Actor] = []
        self.executors: list[Actor] = []

    @property
    def alive(self) -> list[Actor]:
        return [actor for actor in (*self.writers, *self.planners, *self.executors) if not actor.ended]

    @rule(contents=_CONTENTS, whole=st.booleans())
    def write(self, contents: list[bytes], whole: bool) -> None:
        if sum(not actor.ended for actor in self.writers) < 3:
            self.writers.append(self.world.writer(f"writer {len(self.writers)}", [(contents, whole)]))

    @rule()
    def plan(self) -> None:
        def act(actor: Actor) -> None:
            repo = Repository(TurnStore(self.world.store, actor), self.world.repo.format)
            gc.plan(repo, RetentionRules(), 0.0, workers=Serial, part_objects=2)

        if sum(not actor.ended for actor in self.planners) < 2:
            self.planners.append(Actor(f"planner {len(self.planners)}", act))

    @precondition(lambda self: all(actor.ended for actor in self.executors))
    @rule()
    def execute(self) -> None:
        """Execute an open plan; after a kill, continue with it."""

        def act(actor: Actor) -> None:
            repo = Repository(TurnStore(self.world.store, actor), self.world.repo.format)
            due = gc_execute.due(repo, 0.0)
            if due is not None:
                gc_execute.execute(repo, due.plan, "the lock", grace_s=0.0, workers=Serial)

        self.executors.append(Actor(f"executor {len(self.executors)}", act))

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9), steps=st.integers(1, 12))
    def step(self, which: int, steps: int) -> None:
        actor = self.alive[which % len(self.alive)]
        for _ in range(steps):
            if not actor.ended:
                actor.step()
                assert not self.world.broken()

    @rule()
    def kill_gc(self) -> None:
        for actor in (*self.planners, *self.executors):
            actor.kill()

    @precondition(lambda self: set(self.world.store.names("snapshots/")) <= set(self.world.returned))
    @rule()
    def kill_writers(self) -> None:
        """Except a writer whose reference exists and that has not looked again: it must not also pause so long."""
        for actor in self.writers:
            actor.kill()

    @invariant()
    def all_that_was_published_is_whole(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.broken()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        # A writer that waits for a killed executor waits for the next executor.
        while self.alive:
            if all(actor.ended for actor in self.executors):
                self.execute()
            for actor in self.alive:
                actor.step()
        for actor in (*self.writers, *self.planners, *self.executors):
            if isinstance(actor.error, Exception) and not isinstance(actor.error, M5Error):
                raise actor.error
        assert all(not isinstance(actor.error, M5Error) for actor in self.writers)
        self.world.ends_well()


_CI = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
_SOAK = settings(_CI, max_examples=3000, stateful_step_count=80)

TestCollecting = Collecting.TestCase
TestCollecting.settings = _CI


class Longer(Collecting):
    """The same test, for as long as time permits."""


TestLonger = pytest.mark.soak(Longer.TestCase)
TestLonger.settings = _SOAK
