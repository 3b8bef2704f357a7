"""Hints at the cause of a first difference, from all that differs at its step and all that does not.

Faults have patterns. A weight changed by a memory fault differs alone. A different moment of the optimizer with equal
loss and gradient norm points to its betas. A different generator points to random draws. A hint uses recorded evidence
of both runs. If several causes fit the pattern, the hint names all of them. A recorded change that can cause the same
pattern comes before a hint (`reason`).
"""

from collections.abc import Sequence

import msgspec

from m5ws.records.ledger import INEXACT_RESUME, RESUME_LIMIT
from m5ws.records.verdict import FINAL, Divergence, is_result, is_state
from m5ws.reproduce.compare import Comparison, Difference
from m5ws.reproduce.verdict import difference_kinds
from m5ws.reproduce.verdict.difference_kinds import Kind, Traces
from m5ws.runs.outputs import outputs

MARK = "in the original, "
"""Prefix of a strong hint. A strong hint comes before recorded changes."""


_LONE = "No optimizer update changes one tensor alone, but code that writes to it does"


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """A likely cause in words, with its pattern. `strong`: the evidence fits this cause alone."""

    words: str
    traces: Traces
    strong: bool = False

    def __str__(self) -> str:
        return f"{MARK}{self.words}" if self.strong else self.words


def record_hint(words: str) -> Hint:
    """Return the hint for a record that contradicts the store."""
    return Hint(words=words, traces="store", strong=True)


def is_lone(words: str | None) -> bool:
    """Return True if a text is the hint for a single tensor that differs."""
    return _LONE in (words or "")


def kind(comparison: Comparison, first: Divergence) -> Kind:
    """Return the kind of a first difference. If a batch was not recorded, other data is possible."""
    named = difference_kinds.kind(first)
    return "result" if named in ("arithmetic", "generator") and not _fed_the_same(comparison, first) else named


def find_hint(comparison: Comparison, first: Divergence, begin: int) -> Hint | None:
    """Return the hint for a divergence of a replay that began after step `begin`; None without evidence.

    Pure: uses only the records of both runs.
    """
    if not comparison.original.by_steps or first.step == 0:
        return None
    if is_result(first.quantity):
        # All steps and states are equal, so they show no pattern, and the first step that differs is unknown.
        return _noticed(comparison, first, begin)
    differences = comparison.at_first()
    return (
        _record(comparison, first, differences)
        or _threads(comparison, first)
        or _noticed(comparison, first, begin)
        or _resumed(comparison, first, begin)
        or _end(first)
        or _data(comparison, first)
        or _pattern(comparison, first, differences)
    )


def resume_hint(comparison: Comparison) -> Hint | None:
    """Return the hint for a script without a session whose run was resumed; None if it was not."""
    original = comparison.original
    if original.by_session or all(notice.kind != outputs.RESTORED for notice in original.notices):
        return None
    continued = f"attempt {original.attempts} continued from the output files of an earlier attempt"
    if generators := comparison.unrestored_generators():
        words = f"{continued}, and did not restore the random generators ({', '.join(generators)})"
    else:
        words = (
            f"{continued}. A script's own resume may be inexact (data order, generators), or may restart a count or a "
            "mean over all steps"
        )
    limits = dict.fromkeys(notice.message for notice in original.notices if notice.kind == RESUME_LIMIT)
    recorded = f". The run recorded limits of its resumes: {'; '.join(limits)}" if limits else ""
    return Hint(words=f"{words}{recorded}", traces="store", strong=True)


def _record(comparison: Comparison, first: Divergence, differences: Sequence[Difference]) -> Hint | None:
    """Return the hint for a wrong record: values of the step differ, and the state after it is equal."""
    if comparison.original.observed:
        return None  # An observed value, such as a setting of the optimizer, may have no effect on the state.
    if not _state_known(comparison, first.step) or any(is_state(each.quantity) for each in differences):
        return None
    names = ", ".join(dict.fromkeys(difference.quantity for difference in differences))
    words = (
        f"only the record differs: {names} of step {first.step} differs, and the whole state after that step is equal, "
        "bit for bit. The ledger was edited, or the script records values that it did not train with"
    )
    return Hint(words=words, traces="record", strong=True)


def _noticed(comparison: Comparison, first: Divergence, begin: int) -> Hint | None:
    """Return the hint for a resume that a notice reports as inexact; None without one before the difference."""
    at = comparison.original.resumed_before(first.step)
    for notice in comparison.original.notices if at is not None and at >= begin else ():
        if notice.kind == INEXACT_RESUME and (notice.step or 0) > (at or 0):
            limits = _resume_limits(comparison, first)
            return Hint(words=f"after step {at} {notice.message}{limits}", traces="store", strong=True)
    return None


def _resumed(comparison: Comparison, first: Divergence, begin: int) -> Hint | None:
    """Return the hint for a first difference that directly follows a resume; None for any other."""
    original = comparison.original
    at = original.resumed_before(first.step)
    if at is None or at < begin:
        return None
    limits = _resume_limits(comparison, first)
    # Most values of an observed step precede its update.
    if first.step == at + 1 or (original.observed and first.step == at + 2):
        words = (
            f"an attempt resumed after step {at}, and step {first.step} is the first that differs. The resume was "
            "inexact (an extra random draw, a wrong position in the data, or state that is not saved), or its machine "
            f"computes different bits{limits}"
        )
        return Hint(words=words, traces="resume", strong=True)
    return None


def _resume_limits(comparison: Comparison, first: Divergence) -> str:
    """Return a sentence on the state that a resume of the original does not restore; empty if no limit is recorded."""
    notices = comparison.original.notices
    limits = dict.fromkeys(notice.message for notice in notices if notice.kind == RESUME_LIMIT)
    if not limits:
        return ""
    # Most limits are about the data.
    likely = first.quantity == "batch" or not _fed_the_same(comparison, first)
    return f". The run recorded {'the likely cause' if likely else 'limits of its resumes'}: {'; '.join(limits)}"


def _end(first: Divergence) -> Hint | None:
    """Return the hint for weights that differ at the end of a script alone."""
    if not first.quantity.startswith(FINAL):
        return None
    words = "code that changes the weights in the last step or after it: best weights of memory, an average, rounding"
    return Hint(words=words, traces="update")


def _threads(comparison: Comparison, first: Divergence) -> Hint | None:
    old = comparison.original.threads_at(first.rank, first.step)
    new = comparison.replay.threads_at(first.rank, first.step)
    if old is None or new is None or old == new or difference_kinds.kind(first) != "arithmetic":
        return None
    words = (
        f"rank {first.rank} used {old} threads in step {first.step}, and {new} in the replay. The number of threads "
        "changes the order of sums"
    )
    return Hint(words=words, traces="threads", strong=True)


def _data(comparison: Comparison, first: Divergence) -> Hint | None:
    if first.quantity != "batch" or first.original is None or first.replayed is None:
        return None
    steps = comparison.original.steps.get(first.rank, {})
    original_step = next((step for step, event in steps.items() if event.batch == first.replayed), None)
    if original_step is not None:
        words = (
            f"the order of the data differs: the replay's batch of step {first.step} was the original's batch of step "
            f"{original_step}"
        )
        return Hint(words=words, traces="data", strong=True)
    return Hint(words="the data: samples with different content, or in a different order", traces="data")


def _pattern(comparison: Comparison, first: Divergence, differences: Sequence[Difference]) -> Hint | None:
    """Return the hint from the differences within one step, if the state after it was recorded."""
    if not _state_known(comparison, first.step) or kind(comparison, first) == "learning rate":
        return None
    names = [difference.quantity for difference in differences]
    if any(name.startswith("generator ") for name in names):
        generators = ", ".join(dict.fromkeys(name for name in names if name.startswith("generator ")))
        return Hint(
            words=f"different draws of random numbers ({generators}) within step {first.step}: dropout that was on in "
            "one run and off in the other, or other code that draws",
            traces="draws",
        )
    if not all(is_state(name) for name in names):
        return _computation(first.quantity) if _fed_the_same(comparison, first) else None
    tensors = [name.removeprefix("tensor ") for name in names if name.startswith("tensor ")]
    if len(tensors) == 1:
        words = (
            f"{tensors[0]} alone differs from the replay's: loss, gradient norm, generators and all other tensors of "
            f"step {first.step} are equal. {_LONE}"
        )
        return Hint(words=words, traces="lone tensor", strong=True)
    return _optimizer(tensors, comparison, first.step)


def _computation(quantity: str) -> Hint | None:
    """Return the hint for a quantity that a pass computes; None for any other, such as a learning rate."""
    passes = {"output": "forward", "loss": "forward", "grad_norm": "backward"}
    if quantity not in passes:
        return None
    words = f"the arithmetic of the {passes[quantity]} pass: threads, a kernel, vector width or a library"
    return Hint(words=words, traces="computation")


def _optimizer(tensors: Sequence[str], comparison: Comparison, step: int) -> Hint | None:
    """Return the hint for tensors that differ although all values up to the gradient norm are equal."""
    known = {_moment(name) for name in comparison.original.states[0][step].tensors if name.startswith("optimizer.")}
    differing = {_moment(name) for name in tensors if name.startswith("optimizer.")}
    if not differing:
        return Hint(
            words="the optimizer's learning rate, weight decay or eps: its state is equal, the weights are not",
            traces="update",
        )
    if differing < known - {"step"}:
        moments, equal = ", ".join(sorted(differing)), ", ".join(sorted(known - differing - {"step"}))
        words = (
            f"the optimizer's betas: loss and gradient norm of step {step} and the optimizer's {equal} are equal, "
            f"its {moments} is not"
        )
        return Hint(words=words, traces="update")
    return _computation("grad_norm")


def _moment(name: str) -> str:
    return name.rpartition(".")[2].partition("@")[0]


def _state_known(comparison: Comparison, step: int) -> bool:
    return step in comparison.original.states.get(0, {}) and step in comparison.replay.states.get(0, {})


def _fed_the_same(comparison: Comparison, first: Divergence) -> bool:
    """Return True if both runs recorded the batch of every rank at the step of the first difference.

    An observed step must also have a loss: the labels of a loss function that is no module are in no batch.
    """
    steps = [
        side.steps.get(rank, {}).get(first.step)
        for side in (comparison.original, comparison.replay)
        for rank in comparison.original.steps
    ]
    observed = comparison.original.observed
    return all(
        step is not None and step.batch is not None and not (observed and "loss" not in step.quantities)
        for step in steps
    )
