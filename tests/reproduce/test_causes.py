"""Causes: each rule names a cause with its evidence, and no cause is certain if another cause is possible."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment.drift import rate
from m5ws.records.explanation import Cause, FirstDifference, Phase
from m5ws.records.ledger import Step
from m5ws.records.trace import TraceEntry
from m5ws.records.verdict import Change
from m5ws.reproduce.explain.causes import Evidence, find_causes, of_changes
from m5ws.reproduce.explain.locate import TraceView
from m5ws.runs.history import History

THREADS = rate("determinism", "threads", "1", "2")
CAPABILITY = rate("environment", "cpu.capability", "AVX512", "DEFAULT")
TORCH = rate("environment", "distribution.torch", "2.12.0", "2.13.0")
NPROC = rate("launch", "nproc", "2", "1")
CODE = rate("code", "model.py", "a", "b")
KERNEL = rate("environment", "kernel", "6.1", "6.2")


def evidence(
    phase: Phase,
    quantity: str = "output 0",
    *changes: Change,
    what: str | None = None,
    changed: str | None = None,
    alone: bool = False,
    same: bool = False,
    controlled: bool = False,
    one: list[TraceEntry] | None = None,
    two: list[TraceEntry] | None = None,
    batches: tuple[str, str] = ("a", "b"),
) -> Evidence:
    before, after = (History() for _ in range(2))
    before.add("0", Step(step=2, quantities={}, batch="b" * 64))
    before.add("0", Step(step=3, quantities={}, batch=batches[0] * 64))
    after.add("0", Step(step=3, quantities={}, batch=batches[1] * 64))
    where = FirstDifference(
        step=3, rank=0, phase=phase, quantity=quantity, original="x", replayed="y", words="it differs",
        module="block.drop", what=what, changed=changed, alone=alone,
    )  # fmt: skip
    return Evidence(
        place=where,
        one=TraceView(history=before, seen={0: one or []}),
        two=TraceView(history=after, seen={0: two or []}),
        changes=changes,
        same=same,
        controlled=controlled,
        recorded=before,
    )


def kinds(proof: Evidence) -> list[tuple[str, bool]]:
    return [(cause.kind, cause.certain) for cause in find_causes(proof)]


def test_without_evidence_the_cause_is_unknown() -> None:
    assert kinds(evidence("forward")) == [("unknown", False)]
    assert kinds(evidence("loss", "loss", KERNEL, controlled=True)) == [("unknown", False)]


def test_another_order_of_equal_samples_is_the_cause_data_order() -> None:
    rows = {"batch": "x", "sample 0": "p", "sample 1": "q"}
    turned = {"batch": "y", "sample 0": "q", "sample 1": "p"}
    one = [TraceEntry(step=3, kind="batch", given=rows)]
    same_samples = [TraceEntry(step=3, kind="batch", given=turned)]
    assert kinds(evidence("batch", "batch", one=one, two=same_samples, batches=("a", "c"))) == [("data order", True)]
    # The replay's batch of step 3 was the original's batch of step 2.
    assert kinds(evidence("batch", "batch")) == [("data order", True)]
    data = rate("data", "corpus", "a", "b")
    assert kinds(evidence("batch", "batch", data, batches=("a", "c"))) == [("recorded change", False)]


def test_a_dropout_that_draws_next_explains_a_generator_difference() -> None:
    two = [
        TraceEntry(step=3, kind="enter", name="block.drop", given={"generator torch": "y"}),
        TraceEntry(
            step=3, kind="leave", name="block.drop", what="torch.nn.modules.dropout.Dropout(p=0.1)", drew=("torch",)
        ),
    ]
    assert kinds(evidence("random numbers", "generator torch", two=two, alone=True)) == [("random numbers", True)]
    assert kinds(evidence("random numbers", "generator torch", alone=True)) == [("random numbers", True)]
    # Different tensors may have caused different draws.
    assert kinds(evidence("random numbers", "generator torch")) == [("random numbers", False)]


def test_changed_settings_of_a_module_explain_its_output() -> None:
    norm = "torch.nn.modules.normalization.LayerNorm"
    for what, changed, is_certain in (
        ("torch.nn.modules.dropout.Dropout(p=0.1)", "torch.nn.modules.dropout.Dropout(p=0.3)", True),
        (f"{norm}(eps=1)", f"{norm}(eps=2)", True),
        ("model.Mix(a=1)", "model.Mix(a=2)", False),
    ):
        found = kinds(evidence("forward", what=what, changed=changed, alone=True))
        assert found == [("module setting", is_certain)]
    # If the inputs of a module differ, its settings are not the first difference.
    assert kinds(evidence("forward", "input 0", what=f"{norm}(eps=1)", changed=f"{norm}(eps=2)")) == [
        ("unknown", False)
    ]


def test_a_nondeterministic_kernel_is_certain_only_with_a_warning_of_torch() -> None:
    left = TraceEntry(step=3, kind="leave", name="block.drop", op="IndexAddBackward0", made={"output 0": "x"})
    right = msgspec.structs.replace(left, made={"output 0": "y"})
    warned = TraceEntry(step=3, kind="warning", name="block.drop", op="index_add_cuda_ does not have a deterministic …")
    quiet = evidence("forward", alone=True, same=True, one=[left], two=[right])
    warning = evidence("forward", alone=True, same=True, one=[left, warned], two=[right])
    assert kinds(quiet) == [("nondeterministic kernel", False)]
    assert kinds(warning) == [("nondeterministic kernel", True)]
    assert find_causes(quiet)[0].evidence[0].startswith("IndexAdd of block.drop made different bits")
    # Under different conditions, a module's different output is no evidence of a nondeterministic kernel.
    assert kinds(evidence("forward", alone=True, one=[left], two=[right])) == [("unknown", False)]


changes = st.lists(st.sampled_from([THREADS, CAPABILITY, TORCH, NPROC, CODE, KERNEL]), unique_by=lambda one: one.name)


@given(changes, st.booleans())
def test_recorded_changes_are_certain_only_if_the_experiment_was_controlled(
    differ: list[Change], controlled: bool
) -> None:
    able = [change for change in differ if change.rating != "cannot"]
    (cause,) = of_changes(differ, certain=controlled) or (Cause(kind="unknown"),)
    assert (cause.kind, cause.certain) == (("recorded change", controlled) if able else ("unknown", False))
    assert all(any(change.name in line for line in cause.evidence) for change in able[:4])


def test_changed_optimizer_settings_are_a_cause_and_changed_gradients_are_not() -> None:
    assert kinds(evidence("optimizer", "setting lr of group 0")) == [("optimizer setting", True)]
    assert kinds(evidence("optimizer", "gradient of layer.weight")) == [("unknown", False)]
