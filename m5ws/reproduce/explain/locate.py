"""The first difference between two runs of the same steps, after all before it was equal. Pure.

The order within a step is: the state before it, its trace, the recorded quantities, the state after it. If several
ranks differ in a step, the earliest difference within it comes first.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from m5ws.records.explanation import FirstDifference, Phase
from m5ws.records.trace import TraceEntry
from m5ws.reproduce.compare import differing
from m5ws.reproduce.explain.align import inside_step, locate
from m5ws.runs.history import History


class TraceView(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one run, and the traces of the traced steps, by rank."""

    history: History
    seen: Mapping[int, Sequence[TraceEntry]] = {}

    def in_step(self, rank: int, step: int) -> list[TraceEntry]:
        """Return the trace of a rank in a step, without warnings, which change nothing."""
        return [entry for entry in self.seen.get(rank, ()) if entry.step == step and entry.kind != "warning"]


def first(one: TraceView, two: TraceView, steps: Sequence[int]) -> FirstDifference | None:
    """Return the first place in `steps` where `two` differs from `one`, or None if all common records are equal."""
    ranks = sorted(one.history.steps.keys() & two.history.steps.keys())
    for step in steps:
        places = [pair for rank in ranks if (pair := _of_rank(one, two, rank, step)) is not None]
        if places:
            _, earliest = min(places, key=lambda pair: (pair[0], pair[1].rank))
            return msgspec.structs.replace(earliest, ranks=tuple(sorted({locate.rank for _, locate in places})))
    return None


def _of_rank(one: TraceView, two: TraceView, rank: int, step: int) -> tuple[tuple[int, int], FirstDifference] | None:
    """Return the first difference of a rank in a step, if any, with its position in the step."""
    if (before := _state(one.history, two.history, rank, step, "state")) is not None:
        return (0, 0), before
    if (inside := inside_step(one.in_step(rank, step), two.in_step(rank, step), rank, step)) is not None:
        return (1, inside[0]), inside[1]
    if (quantity := _quantity(one.history, two.history, rank, step)) is not None:
        return (2, 0), quantity
    after = _state(one.history, two.history, rank, step, "update")
    return ((3, 0), after) if after is not None else None


# --- records around a step ----------------------------------------------------------------------------------------


def _state(
    one: History, two: History, rank: int, step: int, phase: Literal["state", "update"]
) -> FirstDifference | None:
    """Return the first difference of the states before or after a step. Generators, one set per rank, come first."""
    after = step if phase == "update" else step - 1
    old, new = one.states.get(rank, {}).get(after), two.states.get(rank, {}).get(after)
    if old is None or new is None:
        return None
    when = f"after step {after}" if after else "before the first step"
    for name in differing(old.generators, new.generators):
        words = f"generator {name} of rank {rank} differs {when}"
        values = (old.generators.get(name), new.generators.get(name))
        difference = locate(step, rank, "random numbers", f"generator {name}", values, words)
        # Different tensors may have caused the draws, as well as the other way round.
        return msgspec.structs.replace(difference, alone=not differing(*(_tensors(side, after) for side in (one, two))))
    names = differing(old.tensors, new.tensors)
    if not names:
        return None
    name = names[0]
    more = f", the first by name of {len(names)} tensors" if len(names) > 1 else ", and no other tensor"
    values = (old.tensors.get(name), new.tensors.get(name))
    difference = locate(step, rank, phase, f"tensor {name}", values, f"{name} differs {when}{more}")
    return msgspec.structs.replace(difference, tensor=name, module=_module_of(name))


def _tensors(history: History, after: int) -> dict[str, str]:
    """Return the fingerprints after a step, which rank 0 records for all ranks."""
    known = history.states.get(0, {}).get(after)
    return known.tensors if known is not None else {}


def _quantity(one: History, two: History, rank: int, step: int) -> FirstDifference | None:
    old, new = one.steps.get(rank, {}).get(step), two.steps.get(rank, {}).get(step)
    if old is None or new is None:
        return None
    if old.batch != new.batch:
        return locate(step, rank, "batch", "batch", (old.batch, new.batch), f"the batch of rank {rank} differs")
    # In causal order, which the sorted names of a record have lost: the loss comes before its gradients.
    for name in sorted(
        {*old.quantities, *new.quantities}, key=lambda name: ("loss" not in name, "norm" not in name, name)
    ):
        values = (old.quantities.get(name), new.quantities.get(name))
        if values[0] != values[1]:
            phase: Phase = "gradient" if "norm" in name else "loss" if "loss" in name else "update"
            words = f"{name} differs on rank {rank}, and everything recorded before is equal"
            return locate(step, rank, phase, name, values, words)
    return None


def _module_of(tensor: str) -> str:
    """Return the module of a tensor of the state: `model.block.fc.weight` belongs to `block.fc`."""
    kind, _, path = tensor.partition("@")[0].partition(".")
    return path.rsplit(".", 2 if kind == "optimizer" else 1)[0] if "." in path else ""
