"""The place of an attempt that continues from the script's own checkpoint: proven, or the attempt is unplaced."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import m5ws
from m5ws.agent.delivery import Delivery
from m5ws.errors import UsageError
from m5ws.records.ledger import Notice, Observation, State, Step
from m5ws.repository.repository import Repository
from m5ws.reproduce import compare, gaps
from m5ws.runs import history
from m5ws.training.observation import place
from tests.support.records import planted

SCRIPT = str(Path(__file__).parent / "scripts" / "observed_killed.py")
RUN, OTHER = "00000000000a", "00000000000b"
SEEDS = 150


@pytest.fixture
def observed(runner: Any) -> Any:
    runner.observe = True
    return runner


def train(runner: Any, run: str, *words: str, ranks: int = 1) -> int:
    """Train one attempt of a run, and deliver its records. Return its status."""
    if runner.run != run:
        runner.run, runner.attempts = run, 0
    attempt = runner(SCRIPT, *words, ranks=ranks)
    Delivery(runner.repo, run, runner.attempts, attempt.directory / "spool").deliver(final=True)
    return int(attempt.status)


@pytest.mark.parametrize(
    ("moment", "at", "words"),
    [
        ("backward", 2, ("adamw",)),
        ("update", 3, ("adamw",)),
        ("save", 3, ("adamw",)),
        ("update", 3, ("both",)),
        ("backward", 2, ("sgd", "line")),
        ("save", 3, ("sgd", "line")),
    ],
    ids=str,
)
def test_a_run_killed_at_any_moment_and_resumed_equals_an_uninterrupted_run(
    observed: Any, tmp_path: Path, moment: str, at: int, words: tuple[str, ...]
) -> None:
    words = (moment, str(at), *words)
    assert train(observed, RUN, "5", str(tmp_path / "one.pt"), *words) != 0
    assert train(observed, RUN, "5", str(tmp_path / "one.pt"), *words) == 0
    assert train(observed, OTHER, "5", str(tmp_path / "two.pt"), *words) == 0
    one, two = (history.load(observed.repo, run) for run in (RUN, OTHER))
    assert one.begun[-1] == (at - (moment != "save"), 2) and one.without_place == ()
    comparison = compare.compare_histories(one, two)
    comparison.compare_ends()
    assert comparison.first() is None and gaps.missing(comparison) == ()
    assert comparison.equal["steps"] == 5 and comparison.state_compared()


@pytest.mark.parametrize("optimizers", ["sgd", "adamw"])
def test_a_start_from_the_beginning_is_placed_by_the_state_before_its_first_step(
    observed: Any, tmp_path: Path, optimizers: str
) -> None:
    words = ("save", "3", optimizers)
    assert train(observed, RUN, "5", str(tmp_path / "one.pt"), *words) != 0
    assert train(observed, RUN, "5", str(tmp_path / "other.pt"), *words) == 0
    done = history.load(observed.repo, RUN)
    assert done.begun[-1] == (0, 2) and any("from the beginning" in notice.message for notice in done.notices)


@pytest.mark.parametrize("words", [("sgd",), ("adamw", "forgets")], ids=" ".join)
def test_an_attempt_without_a_place_is_unplaced_and_names_the_needed_line(
    observed: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    words = ("5", str(tmp_path / "one.pt"), "save", "3", *words)
    assert train(observed, RUN, *words) != 0
    assert train(observed, RUN, *words) == 0
    done = history.load(observed.repo, RUN)
    assert done.without_place == (2,) and sorted(done.steps[0]) == [1, 2, 3]
    assert ["m5ws.resumed_at(step)" in notice.message for notice in done.notices if notice.kind == "unplaced"] == [True]


def test_all_ranks_of_a_killed_run_get_the_same_place(observed: Any, tmp_path: Path) -> None:
    words = ("save", "3", "adamw")
    assert train(observed, RUN, "5", str(tmp_path / "one.pt"), *words, ranks=2) != 0
    assert train(observed, RUN, "5", str(tmp_path / "one.pt"), *words, ranks=2) == 0
    done = history.load(observed.repo, RUN)
    assert done.begun == [(0, 1), (3, 2)] and [len(steps) for steps in done.steps.values()] == [5, 5]


Pattern = Callable[[int], tuple[str, ...]]
"""The optimizers that a step calls."""


class Training:
    """A made-up training: the optimizers of each kind of step, and their counts of updates."""

    PATTERNS: tuple[Pattern, ...] = (
        lambda _: ("adam",),
        lambda _: ("adam", "sgd"),
        lambda step: ("adam",) if step % 2 else ("adam2",),
        lambda step: ("adam", "adam2") if step % 3 == 0 else ("adam",),
        lambda step: ("adam",) if step < 6 else ("adam2",),
        lambda _: ("sgd",),
    )

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pattern = seed % len(self.PATTERNS)
        self.reset = self.random.choice([0, 0, 0, 4])

    def step(self, step: int, *, is_new: bool = False, number: int = 0) -> Step:
        """Return a step with the counts after it. The first optimizer may be new, and SGD counts nothing."""
        called, updates = self.PATTERNS[self.pattern], dict[str, int]()
        since = (step - 1) // self.reset * self.reset if self.reset else 0
        for label in filter(lambda label: label != "sgd", called(step)):
            updates[label] = 1 if is_new else sum(label in called(other) for other in range(since + 1, step + 1))
        digests = {place.settings(label): "0" * 64 for label in called(step)}
        return Step(step=number, quantities={}, digests=digests, updates=updates)


def test_no_attempt_is_placed_at_a_wrong_step(repo: Repository) -> None:
    """Attempts lose their last steps with their machine, a script forgets its optimizer, or resets it."""
    placed = 0
    for seed in range(SEEDS):
        run, training, saved = f"{seed:012x}", Training(seed), 0
        planted.run(repo, run)
        for attempt in range(1, training.random.randint(2, 4)):
            planted.begin(repo, run, attempt)
            done = training.random.randint(saved + 3, saved + 12)
            recorded = done - (training.random.randint(0, 2) if training.pattern < 2 and not training.reset else 0)
            steps = [training.step(number, number=number) for number in range(saved + 1, recorded + 1)]
            states = [State(step=number, tensors={"model.w": str(number)}) for number in (saved, saved + 1)]
            planted.append(repo, run, attempt, "0", Observation(rank=0, after=saved), states[0], *steps, states[1])
            saved = training.random.randint(saved, done)
            first = training.step(saved + 1, is_new=training.random.random() < 0.2)
            earlier = place.load(repo, run, attempt + 1, 0)
            found = place.find(earlier, first, {"model.w": str(saved)})
            assert found in (None, saved), (seed, vars(training), saved, found)
            if found is None:
                is_counted = bool(first.updates) and max(first.updates.values()) > 1
                assert training.pattern > 1 or training.reset or not is_counted
                break
            placed += 1
    assert placed > SEEDS / 2


@pytest.mark.parametrize(("counts", "expected"), [({"adam": 4}, 2), ({"adam": 4, "new": 9}, 2), ({"new": 4}, None)])
def test_an_optimizer_without_an_earlier_label_places_nothing(counts: dict[str, int], expected: int | None) -> None:
    earlier = place.Earlier(last=10, updates={"adam": {3: 2, 4: 3}})
    assert place.find(earlier, Step(step=0, quantities={}, updates=counts), {}) == expected


def test_resumed_at_must_precede_the_first_step_and_does_nothing_outside_a_run(observed: Any) -> None:
    m5ws.resumed_at(5)
    with pytest.raises(UsageError, match="0 or more"):
        m5ws.resumed_at(-1)
    late = observed(str(Path(SCRIPT).with_name("observed.py")), "late_line", "3")
    assert late.status != 0 and "after the first step" in late.log() and late.of(Notice) == []
