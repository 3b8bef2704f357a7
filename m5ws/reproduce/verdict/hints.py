"""What a first difference points to, by all that differs with it and all that does not.

A fault has a pattern. A weight that memory changed differs alone; a moment of the optimizer that differs while loss and
gradient norm do not tells of its betas; a generator that differs tells of draws. Signs are of the original, and of
evidence that was recorded; they name what fits the pattern, and where several things do, all of them. A recorded change
that can leave the same traces comes before a sign (`reason`).
"""

from collections.abc import Sequence

import msgspec

from m5ws.records.verdict import Divergence
from m5ws.reproduce.compare import Comparison, Difference
from m5ws.reproduce.verdict import difference_kinds
from m5ws.reproduce.verdict.difference_kinds import Kind, Traces
from m5ws.runs.history import History
from m5ws.runs.outputs import outputs

MARK = "in the original, "
"""How a sign that rests on evidence of its own begins; it comes before recorded changes."""


_LONE = "No update of the training does that: code that changed it fits"


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """What is pointed to, in words, by which traces. `strong`: the evidence is of this alone."""

    words: str
    traces: Traces
    strong: bool = False

    def __str__(self) -> str:
        return f"{MARK}{self.words}" if self.strong else self.words


def of_record(words: str) -> Sign:
    """Return the sign of a record that the store itself contradicts."""
    return Sign(words=words, traces="store", strong=True)


def is_lone(words: str | None) -> bool:
    """Return True if words are of a tensor that differs alone."""
    return _LONE in (words or "")


def kind(comparison: Comparison, first: Divergence) -> Kind:
    """Return the kind of a first difference: where no batch was recorded, anything may have been fed."""
    named = difference_kinds.kind(first)
    return "result" if named in ("arithmetic", "generator") and not _fed_the_same(comparison, first) else named


def sign(comparison: Comparison, first: Divergence, begin: int) -> Sign | None:
    """Return what a divergence of a replay that began after step `begin` points to; None if nothing more is known.

    Pure: of what both sides recorded.
    """
    if not comparison.original.by_steps or first.step == 0:
        return None
    found = comparison.at_first()
    return (
        _record(comparison, first, found)
        or _threads(comparison, first)
        or _resumed(comparison, first, begin)
        or _data(comparison, first)
        or _pattern(comparison, first, found)
    )


def continued(original: History) -> Sign | None:
    """Return the sign of a script without a session whose run was resumed, None if it was not."""
    if original.by_steps or all(notice.kind != outputs.RESTORED for notice in original.notices):
        return None
    words = (
        f"attempt {original.attempts} went on from the output files of an attempt before it. A resume that a script "
        "does itself may be inexact (data order, generators); a count or a mean over all steps may restart"
    )
    return Sign(words=words, traces="store", strong=True)


def _record(comparison: Comparison, first: Divergence, found: Sequence[Difference]) -> Sign | None:
    """Return the sign of a record that is not of this training: a step's values differ, what came of it does not."""
    if not _state_known(comparison, first.step) or any(_of_state(one.quantity) for one in found):
        return None
    names = ", ".join(dict.fromkeys(one.quantity for one in found))
    words = (
        f"only the record differs: {names} of step {first.step} is another, and the whole state after that step is the "
        "same, bit for bit. The ledger was edited, or the script records what it did not train with"
    )
    return Sign(words=words, traces="record", strong=True)


def _resumed(comparison: Comparison, first: Divergence, begin: int) -> Sign | None:
    original = comparison.original
    at = original.resumed_before(first.step)
    if at is None or at < begin:
        return None
    inexact = [one for one in original.notices if one.kind == "inexact-resume" and (one.step or 0) > at]
    if inexact:
        return Sign(words=f"after step {at} {inexact[0].message}", traces="store", strong=True)
    if first.step == at + 1:
        words = (
            f"an attempt resumed after step {at}, and its first step is the first that differs: the resume was not "
            "exact (one number drawn too many, a place in the data, or state that is not saved), or the machine that "
            "it resumed on computes otherwise"
        )
        return Sign(words=words, traces="resume", strong=True)
    return None


def _threads(comparison: Comparison, first: Divergence) -> Sign | None:
    old = comparison.original.threads_at(first.rank, first.step)
    new = comparison.replay.threads_at(first.rank, first.step)
    if old is None or new is None or old == new or difference_kinds.kind(first) != "arithmetic":
        return None
    words = (
        f"rank {first.rank} used {old} threads in step {first.step}, and {new} in the replay: sums are split by them"
    )
    return Sign(words=words, traces="threads", strong=True)


def _data(comparison: Comparison, first: Divergence) -> Sign | None:
    if first.quantity != "batch" or first.original is None or first.replayed is None:
        return None
    steps = comparison.original.steps.get(first.rank, {})
    other = next((step for step, event in steps.items() if event.batch == first.replayed), None)
    if other is not None:
        words = (
            f"the order of the data is another: the batch that the replay was given in step {first.step} came in step "
            f"{other}"
        )
        return Sign(words=words, traces="data", strong=True)
    return Sign(words="the data: samples of another content, or in another order", traces="data")


def _pattern(comparison: Comparison, first: Divergence, found: Sequence[Difference]) -> Sign | None:
    """Return the sign of what differs within one step, where the state after it was recorded."""
    if not _state_known(comparison, first.step) or kind(comparison, first) == "learning rate":
        return None
    names = [one.quantity for one in found]
    if any(name.startswith("generator ") for name in names):
        which = ", ".join(dict.fromkeys(name for name in names if name.startswith("generator ")))
        return Sign(
            words=f"random numbers ({which}) drawn otherwise within step {first.step}: dropout that was on in one and "
            "off in the other, or something else that draws",
            traces="draws",
        )
    if not all(_of_state(name) for name in names):
        return _computation(first.quantity) if _fed_the_same(comparison, first) else None
    tensors = [name.removeprefix("tensor ") for name in names if name.startswith("tensor ")]
    if len(tensors) == 1:
        words = (
            f"{tensors[0]} alone changed: loss, gradient norm, generators and every other tensor of step {first.step} "
            f"are the same. {_LONE}"
        )
        return Sign(words=words, traces="lone tensor", strong=True)
    return _optimizer(tensors, comparison, first.step)


def _computation(quantity: str) -> Sign | None:
    """Return the sign of a quantity that a pass computes; None of any other, as a learning rate or a script's own."""
    passes = {"loss": "forward", "grad_norm": "backward"}
    if quantity not in passes:
        return None
    words = f"how the {passes[quantity]} pass computes: threads, a kernel, vector width, a library"
    return Sign(words=words, traces="computation")


def _optimizer(tensors: Sequence[str], comparison: Comparison, step: int) -> Sign | None:
    """Return the sign of tensors that differ though everything up to the gradient's norm is the same."""
    known = {_moment(name) for name in comparison.original.states[0][step].tensors if name.startswith("optimizer.")}
    differing = {_moment(name) for name in tensors if name.startswith("optimizer.")}
    if not differing:
        return Sign(
            words="the optimizer's learning rate, weight decay or eps: its own state is the same, weights are not",
            traces="update",
        )
    if differing < known - {"step"}:
        which, same = ", ".join(sorted(differing)), ", ".join(sorted(known - differing - {"step"}))
        words = (
            f"the optimizer's betas: loss and gradient norm of step {step} and the optimizer's {same} are the same, "
            f"its {which} is not"
        )
        return Sign(words=words, traces="update")
    return _computation("grad_norm")


def _moment(name: str) -> str:
    return name.rpartition(".")[2].partition("@")[0]


def _state_known(comparison: Comparison, step: int) -> bool:
    return step in comparison.original.states.get(0, {}) and step in comparison.replay.states.get(0, {})


def _fed_the_same(comparison: Comparison, first: Divergence) -> bool:
    """Return True if both sides recorded the batch of every rank in a step; the first difference is after it."""
    steps = [
        side.steps.get(rank, {}).get(first.step)
        for side in (comparison.original, comparison.replay)
        for rank in comparison.original.steps
    ]
    return all(step is not None and step.batch is not None for step in steps)


def _of_state(quantity: str) -> bool:
    return quantity.startswith(("tensor ", "generator ", "checkpoint"))
