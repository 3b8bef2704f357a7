"""Tracing a step: it changes no bit, and the entries are in the order of events."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import m5ws
from m5ws.records import codec
from m5ws.records.launch import Trace
from m5ws.records.trace import TraceEntry
from m5ws.repository.ledger.spool import SpoolReader
from m5ws.training.trace import values


def seen(attempt: Any, rank: int = 0) -> list[TraceEntry]:
    path = Path(attempt.directory) / "spool" / f"{rank}.trace"
    return [codec.decode(event, TraceEntry) for event in SpoolReader(path).read()]


@pytest.mark.parametrize(("kind", "ranks"), [("single", 1), ("ddp", 2), ("fsdp", 2), ("zero3", 2)])
def test_a_traced_step_has_the_same_bits(
    operator: dict[str, str], runner: Any, tiny: str, kind: str, ranks: int
) -> None:
    zero = str(Path(__file__).parent / "scripts" / "deepspeed_tiny.py")
    words = (zero, "3", "bf16", "4") if kind == "zero3" else (tiny, kind, "4")
    plain = runner(*words, ranks=ranks)
    runner.run, runner.trace = "000000000002", Trace(first=2, last=3)
    looked = runner(*words, ranks=ranks)
    assert (plain.status, looked.status) == (0, 0), looked.log()
    for rank in range(ranks):
        assert plain.steps(rank) == looked.steps(rank)
        states, more = plain.states(rank), looked.states(rank)
        assert states == {step: more[step] for step in states} and {1, 2, 3} <= more.keys()
        assert {one.step for one in seen(looked, rank)} == {2, 3}
        assert {"enter", "leave", "backward"} <= {one.kind for one in seen(looked, rank)}
    assert plain.contents == looked.contents


class Twice(torch.nn.Module):
    """One layer that is called twice, once with its activations recomputed, and a part that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.drop = torch.nn.Dropout(0.5)
        self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = self.frozen(torch.tanh(self.layer(x)))
        return checkpoint(lambda y: self.drop(self.layer(y)), once, use_reentrant=False)  # type: ignore[no-any-return]


def script() -> None:
    torch.manual_seed(5)
    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in m5ws.session(model, optimizer, total_steps=3, fingerprint_every=1).steps():
        loss = model(torch.arange(8.0).view(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.record(loss=loss)


def test_recomputed_shared_and_frozen_modules_are_traced_without_other_bits(in_process: Any) -> None:
    plain, _ = in_process(script)
    looked, error = in_process(script, trace=Trace(first=2, last=2))
    again, _ = in_process(script, trace=Trace(first=2, last=2))
    assert error is None
    assert plain.steps(0) == looked.steps(0) and plain.states(0) == looked.states(0)
    found = seen(looked)
    without_time = [msgspec.structs.replace(one, time_s=0.0) for one in found]
    assert without_time == [msgspec.structs.replace(one, time_s=0.0) for one in seen(again)]
    # Called twice, and once more in the backward pass, which recomputes it.
    entered = [(one.name, one.call) for one in found if one.kind == "enter"]
    assert entered.count(("layer", 1)) == entered.count(("layer", 3)) == 1
    assert {one.name for one in found if one.kind == "gradient"} == {"layer.weight", "layer.bias"}
    assert ("frozen", "TBackward0") not in {(one.name, one.op) for one in found}
    drawn = [one.drew for one in found if one.kind == "leave" and one.name == "drop"]
    assert drawn[0] == ("torch",)
    tanh = next(one for one in found if one.op.startswith("TanhBackward"))
    assert (tanh.kind, tanh.name) == ("backward", ""), "an operation between two modules is the one's that calls them"


def test_a_trace_has_at_most_the_allowed_number_of_entries(in_process: Any) -> None:
    attempt, error = in_process(script, trace=Trace(first=1, last=3, most=5))
    assert error is None
    assert [one.kind for one in seen(attempt)][-1] == "cut" and len(seen(attempt)) == 5


def one_step(make: Callable[[], torch.nn.Module]) -> Callable[[], None]:
    """Return a script that takes one step with a model of four inputs."""

    def script() -> None:
        model = make()
        for step in m5ws.session(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=1).steps():
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            step.record(loss=loss)

    return script


def test_a_compiled_module_is_not_traced_and_causes_a_notice(in_process: Any) -> None:
    def half() -> torch.nn.Module:
        inside: Any = torch.compile(torch.nn.Linear(4, 4), backend="eager")
        return torch.nn.Sequential(torch.nn.Linear(4, 4), inside)

    attempt, error = in_process(one_step(half), trace=Trace(first=1, last=1))
    assert error is None
    assert any("compiled: 1" in notice for notice in attempt.notices("not-traced"))
    assert {one.name for one in seen(attempt) if one.kind == "enter"} == {"", "0"}


def test_gradients_and_settings_are_named(in_process: Any) -> None:
    attempt, _ = in_process(script, trace=Trace(first=3, last=3))
    update = next(one for one in seen(attempt) if one.kind == "update")
    assert update.given["setting lr of group 0"] == "0.1"
    assert update.given["gradient of layer.bias"].startswith("float32[4] ")
    made = {name for one in seen(attempt) if one.kind == "backward" for name in one.made}
    assert {"gradient of layer.weight", "gradient of layer.bias"} <= made


class Ruled(torch.nn.Linear):
    """A layer that names an object among its settings."""

    def extra_repr(self) -> str:
        return f"rule={object()!r}"


def test_a_traced_setting_contains_no_memory_address(in_process: Any) -> None:
    attempt, error = in_process(one_step(lambda: Ruled(4, 2)), trace=Trace(first=1, last=1))
    assert error is None
    assert [one.what for one in seen(attempt) if one.kind == "enter"] == [f"{__name__}.Ruled(rule=<object object>)"]


def test_samples_are_distinguished_by_values_without_a_torch_type() -> None:
    texts, turned = np.array(["a", "b"]), np.arange(2)[::-1]
    one = values.batch({"x": torch.ones(2, 3), "names": texts, "more": turned})
    two = values.batch({"x": torch.ones(2, 3), "names": texts[::-1], "more": turned[::-1]})
    assert (one["sample 0"], one["sample 1"]) == (two["sample 1"], two["sample 0"])
    assert one["sample 0"] != one["sample 1"]
