"""The first place where two runs differ: a difference of equal inputs, and nothing that follows from it."""

import msgspec
import pytest

from m5ws.records.explanation import FirstDifference
from m5ws.records.ledger import State, Step
from m5ws.records.trace import TraceEntry
from m5ws.reproduce.explain.locate import TraceView, first
from m5ws.runs.history import History

STEPS = [3]


def passed() -> list[TraceEntry]:
    """Return the trace of one step of a model with a block of two layers, forward and backward."""
    return [
        TraceEntry(step=3, kind="batch", given={"batch": "b"}),
        TraceEntry(step=3, kind="enter", name="", given={"input 0": "b", "generator torch": "r0"}),
        TraceEntry(step=3, kind="enter", name="block", given={"input 0": "b", "generator torch": "r0"}),
        TraceEntry(step=3, kind="enter", name="block.up", given={"input 0": "b", "parameter weight": "w"}),
        TraceEntry(step=3, kind="leave", name="block.up", what="Linear()", made={"output 0": "u"}),
        TraceEntry(step=3, kind="enter", name="block.down", given={"input 0": "r", "generator torch": "r0"}),
        TraceEntry(step=3, kind="leave", name="block.down", what="Linear()", made={"output 0": "d"}),
        TraceEntry(step=3, kind="leave", name="block", made={"output 0": "o"}),
        TraceEntry(step=3, kind="leave", name="", made={"output 0": "o"}),
        TraceEntry(step=3, kind="backward", name="block.down", op="Addmm", given={"gradient 0": "g"},
             made={"gradient 1": "h"}),
        TraceEntry(step=3, kind="backward", name="block", op="Relu", given={"gradient 0": "h"},
             made={"gradient 0": "i"}),
        TraceEntry(step=3, kind="backward", name="block.up", op="Addmm", given={"gradient 0": "i"},
             made={"gradient of block.up.weight": "j"}),
        TraceEntry(step=3, kind="gradient", name="block.up.weight", made={"gradient": "j"}),
        TraceEntry(step=3, kind="update", given={"gradient of block.up.weight": "j", "setting lr of group 0": "0.1"}),
    ]  # fmt: skip


def history(loss: str = "l", batch: str = "a" * 64, tensors: str = "t", random: str = "r") -> History:
    made = History()
    made.add("0", State(step=2, tensors={"model.block.up.weight": "t"}, generators={"torch": "r"}))
    made.add("0", Step(step=3, quantities={"loss": loss}, batch=batch))
    made.add("0", State(step=3, tensors={"model.block.up.weight": tensors}, generators={"torch": random}))
    return made


def place(changed: list[TraceEntry], **recorded: str) -> FirstDifference | None:
    return first(
        TraceView(history=history(), seen={0: passed()}),
        TraceView(history=history(**recorded), seen={0: changed}),
        STEPS,
    )


def from_(position: int, what: str = "given", name: str = "input 0") -> list[TraceEntry]:
    """Return a trace that differs at one position, and everywhere after it."""
    rows = passed()
    for number, row in enumerate(rows[position:], position):
        first_one = number == position
        given = {key: value + "'" for key, value in row.given.items() if not key.startswith(("parameter", "generator"))}
        made = {key: value + "'" for key, value in row.made.items()}
        if first_one and what == "given":
            given = row.given | {name: "other"}
        elif first_one:
            given = row.given
        rows[number] = msgspec.structs.replace(row, given=row.given | given, made=made)
    return rows


@pytest.mark.parametrize(
    ("changed", "phase", "module", "quantity", "alone"),
    [
        (from_(0, name="batch"), "batch", None, "batch", False),
        (from_(1), "forward", "", "input 0", False),
        (from_(2), "forward", "", "input 0", False),
        (from_(3), "forward", "block", "input 0", False),
        (from_(3, name="parameter weight"), "state", "block.up", "parameter weight", False),
        (from_(4, "made"), "forward", "block.up", "output 0", True),
        (from_(5), "forward", "block", "input 0", False),
        (from_(5, name="generator torch"), "random numbers", "block", "generator torch", True),
        (from_(6, "made"), "forward", "block.down", "output 0", True),
        (from_(7, "made"), "forward", "block", "output 0", True),
        (from_(9, name="gradient 0"), "backward", "block.down", "gradient 0", False),
        (from_(10, "made"), "backward", "block", "gradient 0", True),
        (from_(11, "made"), "backward", "block.up", "gradient of block.up.weight", True),
        (from_(12, "made"), "gradient", "block.up", "gradient", False),
        (from_(13, name="setting lr of group 0"), "optimizer", None, "setting lr of group 0", False),
    ],
)
def test_the_place_of_the_first_traced_difference_is_named(
    changed: list[TraceEntry], phase: str, module: str | None, quantity: str, alone: bool
) -> None:
    difference = place(changed, loss="other", tensors="other")
    assert difference is not None
    assert (difference.phase, difference.module, difference.quantity, difference.alone) == (
        phase,
        module,
        quantity,
        alone,
    )
    assert difference.words and difference.step == 3


def test_recorded_values_locate_a_difference_if_traces_are_equal() -> None:
    loss, state = place(passed(), loss="other", tensors="other"), place(passed(), tensors="other")
    assert loss is not None and (loss.phase, loss.quantity) == ("loss", "loss")
    assert state is not None and (state.phase, state.tensor, state.module) == (
        "update",
        "model.block.up.weight",
        "block.up",
    )
    random = place(passed(), random="other")
    assert random is not None and (random.phase, random.quantity) == ("random numbers", "generator torch")
    both = place(passed(), random="other", tensors="other")
    assert random.alone and both is not None and not both.alone


def test_different_operations_are_located_without_a_comparison_of_values() -> None:
    rows = passed()
    rows[10] = msgspec.structs.replace(rows[10], op="Gelu")
    difference = place(rows)
    assert difference is not None and (difference.phase, difference.module) == ("operations", "block")
    assert "Relu of block" in difference.words and "Gelu of block" in difference.words
    shorter = place(passed()[:-1])
    assert shorter is not None and shorter.phase == "operations" and shorter.replayed is None


def test_a_trace_warning_is_ignored_and_a_cut_ends_the_comparison() -> None:
    rows = passed()
    rows.insert(4, TraceEntry(step=3, kind="warning", op="says torch"))
    assert place(rows) is None
    short = [*passed()[:5], TraceEntry(step=3, kind="cut")]
    difference = first(
        TraceView(history=history(), seen={0: short}), TraceView(history=history(), seen={0: short}), STEPS
    )
    assert difference is None


def test_a_loss_difference_is_named_before_a_gradient_norm_difference() -> None:
    original, replayed = history(), history()
    original.add("0", Step(step=3, quantities={"grad_norm": "n", "loss": "l", "lr": "r"}))
    replayed.add("0", Step(step=3, quantities={"grad_norm": "other", "loss": "other", "lr": "r"}))
    difference = first(TraceView(history=original), TraceView(history=replayed), STEPS)
    assert difference is not None and (difference.phase, difference.quantity) == ("loss", "loss")
