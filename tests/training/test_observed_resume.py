"""The place of an attempt that goes on from the script's own checkpoint: right, or reported as guessed."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.records.ledger import Step
from m5ws.repository.ledger import ledger
from m5ws.reproduce import compare, gaps
from m5ws.runs import history
from m5ws.runs.delivery import Delivery
from m5ws.runs.resume_check import RepeatedSteps
from m5ws.training.observation import earlier_steps

SCRIPT = str(Path(__file__).parent / "scripts" / "observed.py")
RUN, OTHER = "00000000000a", "00000000000b"
SEEDS = 400


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


@pytest.mark.parametrize("optimizers", ["sgd", "adamw", "both"])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("moment", ["backward", "update", "save"])
def test_a_run_that_is_killed_at_any_moment_and_resumed_exactly_is_equal_to_an_uninterrupted_one(
    observed: Any, tmp_path: Path, moment: str, at: int, optimizers: str
) -> None:
    words = (moment, str(at), optimizers)
    assert train(observed, RUN, "killed", "5", str(tmp_path / "one.pt"), *words) != 0
    assert train(observed, RUN, "killed", "5", str(tmp_path / "one.pt"), *words) == 0
    assert train(observed, OTHER, "killed", "5", str(tmp_path / "two.pt"), *words) == 0
    one, two = (history.load(observed.repo, run) for run in (RUN, OTHER))
    assert one.begun[-1] == (at - (moment != "save"), 2)
    assert one.guessed is None or optimizers != "adamw"
    comparison = compare.compare_histories(one, two)
    assert comparison.first() is None and gaps.unplaced(comparison) == () and gaps.missing(comparison) == ()
    assert gaps.differing_generators(comparison) == ()
    assert comparison.equal["steps"] == 5 and comparison.state_compared()


@pytest.mark.parametrize("optimizers", ["sgd", "adamw"])
@pytest.mark.parametrize("resumes", [True, False])
def test_a_resume_that_starts_from_the_beginning_says_so(
    observed: Any, tmp_path: Path, resumes: bool, optimizers: str
) -> None:
    words = ("save", "3", optimizers)
    assert train(observed, RUN, "killed", "5", str(tmp_path / "one.pt"), *words) != 0
    train(observed, RUN, "killed", "5", str(tmp_path / ("one.pt" if resumes else "other.pt")), *words)
    done = history.load(observed.repo, RUN)
    assert done.begun[-1] == (3 if resumes else 0, 2)
    assert any("from the beginning" in notice.message for notice in done.notices) == (not resumes)


@pytest.mark.parametrize("optimizers", ["sgd", "adamw"])
def test_the_ranks_of_a_killed_run_are_placed_alike(observed: Any, tmp_path: Path, optimizers: str) -> None:
    words = ("save", "3", optimizers)
    assert train(observed, RUN, "killed", "5", str(tmp_path / "one.pt"), *words, ranks=2) != 0
    assert train(observed, RUN, "killed", "5", str(tmp_path / "one.pt"), *words, ranks=2) == 0
    assert train(observed, OTHER, "killed", "5", str(tmp_path / "two.pt"), *words, ranks=2) == 0
    one, two = (history.load(observed.repo, run) for run in (RUN, OTHER))
    assert one.begun == [(0, 1), (3, 2)]
    comparison = compare.compare_histories(one, two)
    assert comparison.first() is None and gaps.unplaced(comparison) == () and comparison.equal["steps"] == 10


@pytest.mark.parametrize(("optimizers", "forgotten"), [("adamw", True), ("momentum", True), ("momentum", False)])
def test_a_script_that_does_not_restore_its_optimizer_is_inexact(
    observed: Any, tmp_path: Path, optimizers: str, forgotten: bool
) -> None:
    """It is killed between the update of step 4 and its checkpoint, so that the values of step 4 are equal."""
    words = ("killed", "6", str(tmp_path / "one.pt"), "update", "4", optimizers, *(["forgets"] if forgotten else []))
    assert train(observed, RUN, *words) != 0
    assert train(observed, RUN, *words) == 0
    assert history.load(observed.repo, RUN).begun == [(0, 1), (3, 2)]
    check = RepeatedSteps(observed.repo, RUN, 2)
    events = [ledger.decode_event(event) for batch in ledger.read(observed.repo, RUN, 2, "0") for event in batch.events]
    messages = [message for event in events for message in check.compare("0", event)]
    assert bool(messages) == forgotten and all("optimizer" in message for message in messages)


class Training:
    """Steps of a made-up training: batches by epochs, and one or two optimizers in turn."""

    def __init__(self, seed: int, *, are_certain: bool = False) -> None:
        self.are_certain = are_certain
        self.random = random.Random(seed)
        self.epoch = self.random.choice([1, 2, 3, 5, 1000])
        self.is_shuffled = self.random.random() < 0.5
        self.turns = self.random.choice([1, 1, 2, 3])
        self.counts = self.random.random() < 0.5
        self.rates = self.random.random() < 0.5
        self.is_at_rest = self.random.random() < 0.1

    def step(self, number: int, begin: int = 1, *, is_new: bool = False, batch: int | None = None) -> Step:
        """Return a step of an attempt that begins with `begin`; `is_new`: the optimizer is new, so values differ."""
        place = (number - 1) % self.epoch
        if self.is_shuffled:
            order = [*range(self.epoch)]
            random.Random((number - 1) // self.epoch).shuffle(order)
            place = order[place]
        is_first = (number - 1) % self.turns == 0
        # An attempt that knows no optimizer of earlier ones gives the first label to the one that it calls first.
        begins = self.are_certain or (begin - 1) % self.turns == 0
        label = "optimizer" if is_first == begins else "optimizer2"
        first = -(-number // self.turns)
        updates = first if is_first else number - first
        value = 0 if self.is_at_rest else (number, is_new)
        rate = number if self.rates else 0
        return Step(
            step=number,
            quantities={"lr": str(rate), "grad_norm": str(value)},
            batch=f"{place if batch is None else batch:064x}",
            digests={"output": str(value).encode().hex(), f"{label} settings": f"{rate:064x}"},
            updates={label: 1 if is_new else updates} if self.counts else {},
        )


@pytest.mark.parametrize("are_certain", [False, True])
@pytest.mark.parametrize("fault", ["", "new optimizer"])
def test_no_place_is_wrong_unless_it_is_guessed(fault: str, are_certain: bool) -> None:
    guessed = 0
    for seed in range(SEEDS):
        training = Training(seed, are_certain=are_certain)
        steps: list[Step] = []
        saved = 0
        for _ in range(training.random.randint(1, 3)):
            recorded = training.random.randint(saved + 1, saved + 12)
            steps = [training.step(number, saved + 1) for number in range(recorded, saved, -1)] + steps
            saved = training.random.randint(saved, recorded)
            first = training.step(saved + 1, saved + 1, is_new=bool(fault))
            place = earlier_steps.place(steps, msgspec.structs.replace(first, step=0), are_certain=are_certain)
            if place.unclear is not None:
                guessed += 1
                break  # No later step is judged.
            if not training.is_at_rest or training.turns == 1:
                assert place.after == saved, (seed, vars(training), saved)
                # Otherwise the values of its steps have other names than those of an uninterrupted run.
                assert first.digests.keys() == training.step(saved + 1).digests.keys(), seed
    assert guessed > 0 and (fault or guessed < SEEDS / 2)


def test_a_count_that_the_script_reset_proves_no_place() -> None:
    """It counts to 4 again and again, so the steps with 3 updates are many."""
    for seed in range(SEEDS):
        training = Training(seed)
        training.counts, training.turns = True, 1
        steps = [
            msgspec.structs.replace(training.step(number), updates={"optimizer": (number - 1) % 4 + 1})
            for number in range(training.random.randint(5, 12), 0, -1)
        ]
        first = msgspec.structs.replace(
            training.step(3, batch=training.random.randint(0, 99)), updates={"optimizer": 3}
        )
        proven = earlier_steps.place(steps, first)
        assert proven.unclear is not None or proven.after == 2, seed


def test_another_order_of_batches_is_placed_by_an_optimizer_that_counts() -> None:
    for seed in range(SEEDS):
        training = Training(seed)
        training.counts, training.turns = True, 1
        recorded = training.random.randint(2, 12)
        saved = training.random.randint(1, recorded)
        steps = [training.step(number) for number in range(recorded, 0, -1)]
        other = training.step(saved + 1, batch=training.random.randint(0, training.epoch))
        assert earlier_steps.place(steps, other) == earlier_steps.Place(saved, is_unchecked=saved == recorded), seed
