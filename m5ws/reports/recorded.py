"""Recorded steps of runs: their curves, and the first step in which two runs differ. Rank 0 alone is read.

Rank 0 has the fingerprints of all tensors. Memory does not grow with the steps.
"""

from collections.abc import Iterator

from m5ws.records.ledger import State, Step
from m5ws.records.verdict import Divergence
from m5ws.reports import curves
from m5ws.reports.curves import Curves
from m5ws.repository.repository import Repository
from m5ws.runs import history
from m5ws.runs.history import History
from m5ws.runs.numbers import union

_RANK = 0
_FIRST = ("batch", "loss", "grad_norm")


def load(repo: Repository, run_id: str) -> History:
    """Return the history of a run with the steps and states of rank 0. Raises CorruptObject."""
    return history.load(repo, run_id, ranks={str(_RANK)})


def curves_of(run: History) -> Curves:
    """Return the curves of a run's quantities."""
    return curves.of_steps(run.steps.get(_RANK, {}))


def first_difference(original: History, other: History) -> tuple[Divergence | None, int]:
    """Return the first difference of two runs in steps that both recorded, and the number of steps up to there.

    Within a step, the batch comes first, then the loss, other quantities, digests of other values, and the state after
    the step.
    """
    compared = 0
    steps, states = original.steps.get(_RANK, {}), original.states.get(_RANK, {})
    other_steps, other_states = other.steps.get(_RANK, {}), other.states.get(_RANK, {})
    for number in union([steps, states]):
        if number in steps and number in other_steps:
            compared += 1
            for name, one, two in _different(steps[number], other_steps[number]):
                return Divergence(step=number, rank=_RANK, quantity=name, original=one, replayed=two), compared
        if number in states and number in other_states:
            for name, one, two in _different_state(states[number], other_states[number]):
                return Divergence(step=number, rank=_RANK, quantity=name, original=one, replayed=two), compared
    return None, compared


def _different(one: Step, two: Step) -> Iterator[tuple[str, str | None, str | None]]:
    before, after = ({"batch": step.batch, **step.quantities, **step.digests} for step in (one, two))
    names = dict.fromkeys([*(name for name in _FIRST if name in before or name in after), *before, *after])
    yield from ((name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name))


def _different_state(one: State, two: State) -> Iterator[tuple[str, str | None, str | None]]:
    for kind, before, after in (("tensor", one.tensors, two.tensors), ("generator", one.generators, two.generators)):
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                yield f"{kind} {name}", before.get(name), after.get(name)
