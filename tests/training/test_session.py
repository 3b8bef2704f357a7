"""The session, in one process: its records, its restore, and its errors."""

import functools
from typing import Any

import msgspec
import pytest
import torch

import m5ws
from m5ws.checkpoints import plain_state
from m5ws.errors import CorruptObject, NotFound, UsageError
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.ledger import CheckpointPublished, State, Step
from m5ws.repository import contents
from m5ws.repository.objects import key
from m5ws.store.local import LocalStore
from m5ws.training.state.plain_state import RestoreError, StateError
from tests.support.records import contents as forged_contents
from tests.support.records import planted


@pytest.fixture
def train(tiny_module: Any) -> Any:
    return lambda steps=6, loader="exact": functools.partial(tiny_module.main, "single", steps, loader)


def test_every_step_is_recorded_exactly(in_process: Any) -> None:
    batches = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])]

    def script() -> None:
        model = torch.nn.Linear(2, 1)
        for step in m5ws.session(model, loader=batches, total_steps=4).steps():
            step.next_batch()
            step.record(loss=torch.tensor(0.1), lr=0.1, count=3, worst=float("nan"), tokens=2)
            step.record(tokens=3)

    attempt, error = in_process(script)
    assert error is None
    steps = attempt.of(Step)
    assert [event.step for event in steps] == [1, 2, 3, 4]
    assert steps[0].quantities == {
        "loss": float(torch.tensor(0.1)).hex(),
        "lr": (0.1).hex(),
        "count": (3.0).hex(),
        "worst": "nan:7ff8000000000000",
    }
    assert steps[0].batch == steps[2].batch != steps[1].batch == steps[3].batch
    assert {event.tokens for event in steps} == {5} and {event.total for event in steps} == {4}
    assert [event.step for event in attempt.of(State)] == [0, 3, 4]
    assert attempt.of(State)[0].tensors.keys() == {"model.weight", "model.bias"}
    assert attempt.of(State)[0].generators.keys() == {"python", "numpy", "torch"}
    assert list(attempt.contents) == [4]


def test_a_resume_at_any_checkpoint_is_exact(in_process: Any, train: Any) -> None:
    whole, error = in_process(train(11), fingerprint_at=())
    assert error is None
    published = [event for event in whole.of(CheckpointPublished) if event.step < 11]
    assert [event.step for event in published] == [2, 4, 6, 8, 10]
    for event in published:
        again, error = in_process(train(11), resume=event.checkpoint, fingerprint_at=())
        assert error is None
        assert again.steps(0) == {step: whole.steps(0)[step] for step in range(event.step + 1, 12)}
        assert again.states(0).items() == {s: v for s, v in whole.states(0).items() if s >= event.step}.items()
        assert again.contents[11] == whole.contents[11]


def test_a_loader_without_state_causes_a_notice_and_an_inexact_resume(in_process: Any, train: Any) -> None:
    first, _ = in_process(train(6, "forgetful"))
    assert any("data loader" in message for message in first.notices("resume-limit"))
    at = next(event for event in first.of(CheckpointPublished) if event.step == 2)
    second, error = in_process(train(6, "forgetful"), resume=at.checkpoint)
    assert error is None
    assert any(first.steps(0)[step] != second.steps(0)[step] for step in range(3, 7))


def test_a_restored_state_that_differs_from_the_saved_state_fails_the_rank(in_process: Any, train: Any) -> None:
    repo = in_process.runner.repo
    first, _ = in_process(train())
    checkpoint = repo.objects.get_record(first.newest, Checkpoint)
    content = repo.objects.get_record(checkpoint.content, Content)
    tensors = contents.tensors(repo.objects, content)
    states = [share.state for _, share in contents.shares(repo.objects, content) if share.state is not None]
    weight = next(tensor for tensor in tensors if tensor.name == "model.first.weight")
    other = next(tensor for tensor in tensors if tensor.name == "optimizer.first.weight.exp_avg")
    forged = tuple(
        tensor
        if tensor is not weight
        else type(weight)(name=weight.name, dtype=weight.dtype, shape=weight.shape, shards=other.shards)
        for tensor in tensors
    )
    kept: dict[str, Any] = {"common": content.common, "fingerprints": content.fingerprints}
    false = forged_contents.content(repo.objects, tensors=forged, ranks=states, **kept)
    digest = repo.objects.put_record(
        Checkpoint(
            run=checkpoint.run,
            snapshot=checkpoint.snapshot,
            attempt=checkpoint.attempt,
            step=checkpoint.step,
            content=repo.objects.put_record(false),
        )
    )
    second, error = in_process(train(9), resume=digest)
    assert isinstance(error, RestoreError) and "model.first.weight" in str(error)
    assert second.of(Step) == []
    assert [event.restored for event in second.of(State)] == [True]


class Ema:
    """An average that each rank has of its own."""

    def __init__(self) -> None:
        self.shadow = torch.zeros(3)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.shadow = state["shadow"]


def test_a_resume_on_fewer_ranks_names_each_entry_without_a_restore(in_process: Any) -> None:
    def script() -> None:
        model, noise = torch.nn.BatchNorm1d(3), torch.Generator().manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = {"ema": Ema(), "noise": noise}
        for step in m5ws.session(model, optimizer, total_steps=2, state=state).steps():
            step.record(loss=1.0)

    objects = in_process.runner.repo.objects
    first, error = in_process(script)
    assert error is None
    checkpoint = objects.get_record(first.newest, Checkpoint)
    content = objects.get_record(checkpoint.content, Content)
    apart = {"buffer.running_mean", "buffer.running_var"}
    of_ranks = [
        msgspec.structs.replace(tensor, name=f"{tensor.name}@{rank}") if tensor.name in apart else tensor
        for tensor in contents.tensors(objects, content)
        for rank in range(2 if tensor.name in apart else 1)
    ]
    (state,) = (share.state for _, share in contents.shares(objects, content) if share.state is not None)
    plain = plain_state.read(objects, state)
    plain["backend"]["groups"] = []  # as of a pipeline stage whose groups differ
    states = [state, planted.whole(objects, codec.encode_plain(plain))]
    two = forged_contents.content(
        objects, world=2, ranks=states, tensors=of_ranks, common=content.common, fingerprints=content.fingerprints
    )
    digest = objects.put_record(msgspec.structs.replace(checkpoint, content=objects.put_record(two)))
    second, error = in_process(script, resume=digest)
    assert error is None
    (message,) = (line for line in second.notices("resume-limit") if "made by 2 ranks" in line)
    assert message == (
        "the checkpoint was made by 2 ranks and there are 1 now: not restored: generators (noise, numpy, python, "
        "torch), parameter groups of all ranks but rank 0, state.ema, "
        "buffer.running_mean of all ranks but rank 0, buffer.running_var of all ranks but rank 0, "
        "the position in the data"
    )


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "missing"])
def test_a_damaged_checkpoint_is_an_error(in_process: Any, train: Any, store: LocalStore, damage: str) -> None:
    first, _ = in_process(train())
    objects = in_process.runner.repo.objects
    content = objects.get_record(objects.get_record(first.newest, Checkpoint).content, Content)
    part = contents.tensors(objects, content)[0].shards[0].parts[0]
    path = store.root / key(part.object)
    data = bytearray(path.read_bytes())
    path.chmod(0o644)
    if damage == "flipped bit":
        data[part.offset] ^= 1
        path.write_bytes(data)
    elif damage == "cut short":
        path.write_bytes(b"")
    else:
        path.unlink()
    _, error = in_process(train(9), resume=first.newest)
    assert isinstance(error, NotFound if damage == "missing" else CorruptObject)


def test_stop_makes_the_current_step_the_last_with_a_checkpoint(in_process: Any) -> None:
    def script() -> None:
        session = m5ws.session(torch.nn.Linear(2, 1), total_steps=100)
        for step in session.steps():
            if step.number == 3:
                session.stop()

    attempt, error = in_process(script)
    assert error is None and list(attempt.contents) == [3] and len(attempt.of(Step)) == 3


def test_a_loop_that_is_left_early_causes_a_notice(in_process: Any) -> None:
    def script() -> None:
        for step in m5ws.session(torch.nn.Linear(2, 1), total_steps=9).steps():
            if step.number == 3:
                break

    attempt, error = in_process(script)
    assert error is None and len(attempt.of(Step)) == 2
    assert any("left inside step 3" in message for message in attempt.notices("limit"))


def test_state_that_cannot_be_stored_is_an_error_at_the_start(in_process: Any) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"ok": 1, "inner": [lambda: 1]}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    attempt, error = in_process(lambda: m5ws.session(torch.nn.Linear(2, 1), total_steps=1, state={"odd": Odd()}))
    assert isinstance(error, StateError) and "state.odd.inner[0]" in str(error)
    assert attempt.of(Step) == []


def test_a_resume_with_another_model_is_refused(in_process: Any) -> None:
    def script(width: int) -> None:
        for _ in m5ws.session(torch.nn.Linear(2, width), total_steps=2 * width).steps():
            pass

    first, _ = in_process(lambda: script(1))
    _, error = in_process(lambda: script(3), resume=first.newest)
    assert error is not None and "model.weight" in str(error)


def test_recorded_names_contain_no_wrappers_of_the_model(in_process: Any) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def script(wrapped: bool) -> None:
        first: torch.nn.Module = torch.nn.Linear(2, 2)
        model: Any = torch.nn.Sequential(checkpoint_wrapper(first) if wrapped else first, torch.nn.BatchNorm1d(2))
        model = torch.compile(model, backend="eager") if wrapped else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in m5ws.session(model, optimizer, total_steps=1).steps():
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()

    bare, error = in_process(lambda: script(False))
    assert error is None
    wrapped, error = in_process(lambda: script(True))
    assert error is None
    names = set(bare.states(0)[1][0])
    assert names == set(wrapped.states(0)[1][0])
    assert {"model.0.weight", "buffer.1.running_var", "optimizer.0.weight.momentum_buffer"} <= names


def test_outside_a_run_the_same_script_runs_quietly(train: Any, capsys: Any, recwarn: Any, tmp_path: Any) -> None:
    train()()
    captured = capsys.readouterr()
    assert captured.out == "rank 0 is done\n" and captured.err == ""
    assert list(recwarn) == []
    assert list(tmp_path.iterdir()) == []


def test_the_seed_comes_from_the_run_or_else_from_the_script(in_process: Any) -> None:
    seeds: list[int] = []
    in_process(lambda: seeds.append(m5ws.seed(5)))
    seeds.append(m5ws.seed(5))
    drawn = torch.rand(3)
    m5ws.seed(5)
    assert seeds == [11, 5] and torch.equal(drawn, torch.rand(3))


def test_a_model_and_an_engine_exclude_each_other() -> None:
    with pytest.raises(UsageError):
        m5ws.session(total_steps=1)


def _train(steps: int, *, pushed: bool) -> None:
    """Train by the steps of a session or, as a framework does, by a loop of its own that calls the session."""
    m5ws.seed()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    session = m5ws.session(model, optimizer, total_steps=steps, checkpoint_every=2)

    def update(number: int) -> torch.Tensor:
        batch = torch.full((3, 2), float(number))
        session.observe(batch)
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if not pushed:
        for step in session.steps():
            step.record(loss=update(step.number), tokens=3)
        return
    number = session.begin()
    while not session.should_stop:
        session.end_step(loss=update(number), tokens=3)
        number += 1


def test_a_framework_with_its_own_loop_records_and_resumes_like_a_session_loop(in_process: Any) -> None:
    pushed, error = in_process(lambda: _train(5, pushed=True))
    assert error is None
    in_process.runner.run = "000000000002"
    pulled, _ = in_process(lambda: _train(5, pushed=False))
    for attempt in (pushed, pulled):
        assert list(attempt.contents) == [2, 4, 5]
    assert pushed.steps(0) == pulled.steps(0) and pushed.states(0) == pulled.states(0)
    assert all(batch is not None for _, batch in pushed.steps(0).values())
    at = next(event for event in pulled.of(CheckpointPublished) if event.step == 2)
    again, error = in_process(lambda: _train(5, pushed=True), resume=at.checkpoint)
    assert error is None and list(again.steps(0)) == [3, 4, 5]
    assert again.contents[5] == pulled.contents[5]


@pytest.mark.parametrize("calls", [("end_step",), ("begin", "begin"), ("begin", "end_step", "end_step")])
def test_calls_of_a_session_out_of_order_are_refused(in_process: Any, calls: tuple[str, ...]) -> None:
    def script() -> None:
        session = m5ws.session(torch.nn.Linear(2, 1), total_steps=1)
        for call in calls:
            getattr(session, call)()

    _, error = in_process(script)
    assert isinstance(error, UsageError)
