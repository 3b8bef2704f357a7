"""The first session of a fork: state of the checkpoint, settings of the script, and parts that restart."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

import m5ws
from m5ws.errors import UsageError
from m5ws.records.ledger import CheckpointPublished
from m5ws.records.run import Parent
from m5ws.training.runtime import context
from m5ws.training.state.plain_state import RestoreError

Schedule = Callable[[torch.optim.Optimizer], Any]
_AT = 4


class Loader:
    """Returns the numbers of its batches."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> torch.Tensor:
        self.given += 1
        return torch.full((2, 3), float(self.given))

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class Training:
    """A training of one weight matrix; `rates` and `given` have one entry a step."""

    def __init__(self, schedule: Schedule | None, steps: int, **settings: Any) -> None:
        self._schedule, self._steps, self._settings = schedule, steps, settings
        self.rates: list[float] = []
        self.given: list[float] = []
        self.drawn: list[float] = []
        self.settings: dict[str, Any] = {}

    def __call__(self) -> None:
        m5ws.seed(3)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), **self._settings)
        scheduler = self._schedule(optimizer) if self._schedule else None
        session = m5ws.session(
            model, optimizer, scheduler=scheduler, loader=Loader(), total_steps=self._steps, checkpoint_every=_AT
        )
        for step in session.steps():
            batch = step.next_batch()
            self.rates.append(optimizer.param_groups[0]["lr"])
            self.given.append(float(batch[0, 0]))
            self.drawn.append(float(torch.rand(())))
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
            step.record(loss=loss)
        self.settings = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}


@pytest.fixture
def fork(in_process: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Training, list[str]]]:
    """Train four steps as one run, fork it as another, and return the fork's training and its notices."""

    def run(first: Training, second: Training, **how: Any) -> tuple[Training, list[str]]:
        before, error = in_process(first)
        assert error is None
        in_process.runner.run, in_process.runner.attempts = "000000000002", 0
        origin = Parent(run="000000000001", checkpoint="0000000004-0001", step=_AT, digest=before.newest, **how)
        begin = in_process.runner.context

        def context_of_a_fork(*arguments: Any) -> Any:
            orders, directory = begin(*arguments)
            return msgspec.structs.replace(orders, parent=origin), directory

        monkeypatch.setattr(in_process.runner, "context", context_of_a_fork)
        after, error = in_process(second, resume=before.newest)
        if error is not None:
            raise error
        return second, after.notices("fork")

    return run


def _halving(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def _thirds(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)


def _cosine(length: int) -> Schedule:
    return lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=length)


def _falling(length: int) -> Schedule:
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / length)


@pytest.mark.parametrize("schedule", [_halving, _cosine(9), _falling(9), None])
@pytest.mark.parametrize("settings", ["checkpoint", "script"])
def test_an_unchanged_fork_has_the_learning_rates_of_its_parent(
    fork: Any, schedule: Schedule | None, settings: str
) -> None:
    whole = Training(schedule, 8, lr=0.1)
    whole()
    forked, said = fork(Training(schedule, _AT, lr=0.1), Training(schedule, 8, lr=0.1), settings=settings)
    assert forked.rates == whole.rates[_AT:]
    assert forked.given == [5.0, 6.0, 7.0, 8.0]
    assert said == []


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (_halving, [0.05, 0.05, 0.025, 0.025]),
        (_thirds, [0.02, 0.02, 0.002, 0.002]),
        (_falling(10), [0.2 * (1 - done / 10) for done in range(4, 8)]),
        (None, [0.2] * 4),
    ],
)
def test_a_changed_schedule_continues_at_the_position_of_the_checkpoint(
    fork: Any, schedule: Schedule | None, expected: list[float]
) -> None:
    forked, said = fork(
        Training(_halving if schedule in (_halving, _thirds) else schedule and _falling(8), _AT, lr=0.1),
        Training(schedule, 8, lr=0.2),
        settings="script",
    )
    assert forked.rates == pytest.approx(expected, rel=1e-12)
    assert len(said) == 1 and "lr of group 0" in said[0]


def test_a_changed_script_decides_the_other_optimizer_settings(fork: Any) -> None:
    parent = {"lr": 0.1, "weight_decay": 0.1}
    child = {"lr": 0.1, "weight_decay": 0.3, "betas": (0.8, 0.9)}
    changed, said = fork(Training(None, _AT, **parent), Training(None, 5, **child), settings="script")
    assert changed.settings["weight_decay"] == 0.3 and tuple(changed.settings["betas"]) == (0.8, 0.9)
    assert said[0].split("; ") == [
        "betas of group 0: (0.8, 0.9) (in the checkpoint (0.9, 0.999))",
        "weight_decay of group 0: 0.3 (in the checkpoint 0.1)",
    ]


def test_an_unchanged_script_takes_all_settings_from_the_checkpoint(fork: Any) -> None:
    kept, said = fork(Training(None, _AT, lr=0.1), Training(None, 5, lr=0.7), settings="checkpoint")
    assert kept.rates == [0.1] and said == []


def test_a_notice_names_a_schedule_that_stays_as_in_the_checkpoint(fork: Any) -> None:
    def once(most: float) -> Schedule:
        return lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=most, total_steps=20)

    whole = Training(once(0.1), 5, lr=0.1)
    whole()
    forked, said = fork(Training(once(0.1), _AT, lr=0.1), Training(once(0.3), 5, lr=0.3), settings="script")
    assert forked.rates == whole.rates[_AT:]
    assert "OneCycleLR does not tell its learning rate" in said[0] and "--restart schedule" in said[0]


def test_restart_data_restarts_only_the_data(fork: Any) -> None:
    parent = Training(_halving, _AT, lr=0.1)
    forked, said = fork(parent, Training(_halving, 6, lr=0.1), restart=("data",))
    assert "the data restarts" in said[0]
    assert forked.given == [1.0, 2.0] and forked.rates == [0.025, 0.025]
    # The generators continue: no number is drawn twice.
    assert not set(forked.drawn) & set(parent.drawn)


def test_restart_generators_uses_the_seed_of_the_script(fork: Any) -> None:
    parent = Training(None, _AT, lr=0.1)
    forked, _ = fork(parent, Training(None, 6, lr=0.1), restart=("generators",))
    assert forked.drawn == parent.drawn[:2] and forked.given == [5.0, 6.0]


def test_another_kind_of_schedule_needs_restart_schedule(fork: Any) -> None:
    with pytest.raises(RestoreError, match="scheduler") as refused:
        fork(Training(_halving, _AT, lr=0.1), Training(_falling(8), 8, lr=0.1), settings="script")
    assert "--restart schedule" in refused.value.hint


def test_restart_schedule_accepts_another_kind_of_schedule(fork: Any) -> None:
    forked, _ = fork(
        Training(_halving, _AT, lr=0.1), Training(_falling(8), 6, lr=0.2), settings="script", restart=("schedule",)
    )
    assert forked.rates == [0.2, 0.2 * (1 - 1 / 8)]


def test_a_fork_without_remaining_steps_is_an_error(fork: Any) -> None:
    with pytest.raises(UsageError, match=r"step 4 .*total_steps is 4"):
        fork(Training(None, _AT, lr=0.1), Training(None, _AT, lr=0.1))
    assert context.active() is None


class PairTraining:
    """A training of two optimizers, each with a schedule of its own; `rates` has both rates of each step."""

    def __init__(self, schedules: tuple[Schedule, Schedule], steps: int) -> None:
        self._schedules, self._steps = schedules, steps
        self.rates: list[tuple[float, float]] = []

    def __call__(self) -> None:
        m5ws.seed(3)
        model = torch.nn.Linear(3, 1)
        optimizers = [torch.optim.AdamW([model.weight], lr=0.1), torch.optim.SGD([model.bias], lr=0.2)]
        schedulers = [schedule(optimizer) for schedule, optimizer in zip(self._schedules, optimizers, strict=True)]
        session = m5ws.session(
            model, optimizers, scheduler=schedulers, loader=Loader(), total_steps=self._steps, checkpoint_every=_AT
        )
        for step in session.steps():
            loss = model(step.next_batch()).sum()
            loss.backward()
            first, second = (optimizer.param_groups[0]["lr"] for optimizer in optimizers)
            self.rates.append((first, second))
            for part in (*optimizers, *schedulers):
                part.step()
            model.zero_grad()
            step.record(loss=loss)


def test_several_schedulers_are_restored_and_moved_each_by_itself(fork: Any) -> None:
    before, after = PairTraining((_halving, _halving), 8), PairTraining((_halving, _thirds), 8)
    before()
    after()
    forked, notices = fork(
        PairTraining((_halving, _halving), _AT), PairTraining((_halving, _thirds), 8), settings="script"
    )
    assert [first for first, _ in forked.rates] == [first for first, _ in before.rates[_AT:]]
    assert [second for _, second in forked.rates] == pytest.approx([second for _, second in after.rates[_AT:]])
    (notice,) = notices
    assert "lr of group 1" in notice and "group 0" not in notice


def test_several_schedulers_restart_together(fork: Any) -> None:
    both = (_halving, _cosine(9))
    whole = PairTraining(both, 8)
    whole()
    forked, _ = fork(PairTraining(both, _AT), PairTraining(both, 8), restart=("schedule",))
    assert forked.rates == whole.rates[:_AT]


def test_a_resume_with_several_schedulers_is_exact(in_process: Any) -> None:
    both = (_halving, _cosine(9))
    whole, error = in_process(PairTraining(both, 8))
    assert error is None
    resumed, error = in_process(PairTraining(both, 8), resume=whole.of(CheckpointPublished)[0].checkpoint)
    assert error is None
    assert resumed.steps(0) == {step: whole.steps(0)[step] for step in range(5, 9)}
