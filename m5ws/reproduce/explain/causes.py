"""Causes of a difference, by rules. Each rule is a small function of the evidence that returns a cause or None.

A cause is *certain* only if the evidence excludes all other causes. Either the first difference is itself the named
cause, or two replays on this machine, each equal to its side, differ in recorded changes alone. Of several changes,
`m5ws bisect` finds the changes that matter.
"""

from collections.abc import Callable, Sequence

import msgspec

from m5ws.records.explanation import Cause, FirstDifference
from m5ws.records.trace import TraceEntry
from m5ws.records.verdict import Change
from m5ws.reproduce.explain.align import called, inside_step
from m5ws.reproduce.explain.locate import TraceView
from m5ws.runs.history import History
from m5ws.wording.changes import title

_SHOWN = 4


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence from two compared runs, which first differ at `place`.

    `changes` are their recorded differences. With `same`, both are replays with equal inputs. With `controlled`, each
    equals its side and the second replay is deterministic, so only `changes` or an unrecorded input can be the cause.
    `recorded` is the original's ledger.
    """

    place: FirstDifference
    one: TraceView
    two: TraceView
    changes: Sequence[Change]
    same: bool
    controlled: bool
    recorded: History


Rule = Callable[[Evidence], Cause | None]


def find_causes(evidence: Evidence) -> tuple[Cause, ...]:
    """Return the causes that fit, the certain causes first; `unknown` if none does."""
    rules: tuple[Rule, ...] = (_kernel,) if evidence.same else ()
    rules += (_order_of_data, _random_numbers, _setting, _optimizer)
    by_rule = [cause for rule in rules if (cause := rule(evidence)) is not None]
    causes = (*by_rule, *of_changes(evidence.changes, certain=evidence.controlled and not evidence.same))
    return tuple(sorted(causes, key=lambda cause: not cause.certain)) or (Cause(kind="unknown"),)


def of_changes(changes: Sequence[Change], *, certain: bool) -> tuple[Cause, ...]:
    """Return the recorded changes that can alter bits as one cause; none without such changes."""
    able = [title(change) for change in changes if change.rating != "cannot"]
    more = [f"and {len(able) - _SHOWN} more"] if len(able) > _SHOWN else []
    proof = ["two replays here differ from each other, and in no other recorded input"] if certain else []
    return (Cause(kind="recorded change", certain=certain, evidence=(*able[:_SHOWN], *more, *proof)),) if able else ()


# --- rules --------------------------------------------------------------------------------------------------------


def _kernel(evidence: Evidence) -> Cause | None:
    """Match an operation that made different bits from equal inputs in two replays with equal inputs."""
    place = evidence.place
    if not place.alone or place.phase not in ("forward", "backward"):
        return None
    every = (entry for view in (evidence.one, evidence.two) for trace in view.seen.values() for entry in trace)
    warned = [entry for entry in every if entry.kind == "warning" and entry.step == place.step]
    operations = place.op or ", ".join(_operations(evidence)) or place.what
    lines = [
        f"{operations} of {called(place.module or '')} made different bits from equal inputs in two replays of one run"
    ]
    own = [entry for entry in warned if (_names(entry.op, place.op) if place.op else entry.name == place.module)]
    lines += [f"torch warns: {entry.op}" for entry in own[:_SHOWN]]
    if not warned:
        lines.append("torch lists none of its operations as nondeterministic: another library's kernel, or other input")
    return Cause(kind="nondeterministic kernel", certain=bool(own), evidence=tuple(lines))


def _order_of_data(evidence: Evidence) -> Cause | None:
    """Match batches with the same samples in another order, or at other steps or ranks."""
    place = evidence.place
    if place.phase != "batch":
        return None
    one, two = (_samples(look, place) for look in (evidence.one, evidence.two))
    if one != two and sorted(one) == sorted(two):
        return Cause(kind="data order", certain=True, evidence=("the batch has the same samples in another order",))
    replayed = evidence.two.history.steps.get(place.rank, {}).get(place.step)
    batch = replayed.batch if replayed is not None else None
    for rank, steps in evidence.recorded.steps.items():
        for step, event in steps.items():
            if batch is not None and event.batch == batch and (rank, step) != (place.rank, place.step):
                line = f"the replay's batch equals the batch of rank {rank} of the original at step {step}"
                return Cause(kind="data order", certain=True, evidence=(line,))
    return None


def _random_numbers(evidence: Evidence) -> Cause | None:
    """Match a generator with a different state. The cause is certain if all beside and before it is equal."""
    place = evidence.place
    if place.phase != "random numbers":
        return None
    lines = [place.words]
    drawing = _next_drawing(evidence, place)
    if drawing is not None:
        lines.append(f"{called(drawing.name)} ({drawing.what}) draws from it next, in step {drawing.step}")
    return Cause(kind="random numbers", certain=place.alone, evidence=tuple(lines))


def _setting(evidence: Evidence) -> Cause | None:
    """Match a module with other settings and equal inputs. Only settings of torch's own modules are certain."""
    place = evidence.place
    old, new = place.what or "", place.changed
    if not place.alone or new is None:
        return None
    torchs = old.startswith("torch.nn.") and old.partition("(")[0] == new.partition("(")[0]
    return Cause(kind="module setting", certain=torchs, evidence=(f"{called(place.module or '')}: {old} → {new}",))


def _optimizer(evidence: Evidence) -> Cause | None:
    """Match a setting of the optimizer that is the first difference."""
    place = evidence.place
    if place.phase != "optimizer" or not place.quantity.startswith("setting"):
        return None
    line = f"{place.quantity.removeprefix('setting ')}: {place.original} → {place.replayed}"
    return Cause(kind="optimizer setting", certain=True, evidence=(line,))


def _names(warning: str, op: str) -> bool:
    """Return True if a warning of torch names a backward operation. A backward pass has no current module."""
    return op.removesuffix("0").removesuffix("Backward").lower() in warning.replace("_", "").lower()


# --- evidence -----------------------------------------------------------------------------------------------------


def _operations(evidence: Evidence) -> list[str]:
    """Return the operations of the module whose forward pass differs."""
    place = evidence.place
    seen = evidence.two.in_step(place.rank, place.step)
    position = inside_step(evidence.one.in_step(place.rank, place.step), seen, place.rank, place.step)
    return seen[position[0]].op.replace("Backward0", "").split() if position is not None else []


def _samples(look: TraceView, place: FirstDifference) -> list[str]:
    """Return the digests of the samples of all batches of a step."""
    batches = [entry for entry in look.in_step(place.rank, place.step) if entry.kind == "batch"]
    return [digest for batch in batches for name, digest in batch.given.items() if name.startswith("sample ")]


def _next_drawing(evidence: Evidence, place: FirstDifference) -> TraceEntry | None:
    """Return the first module that draws from the different generator, at its place or later."""
    generator = place.quantity.removeprefix("generator ")
    begun = False
    for seen in evidence.two.seen.get(place.rank, ()):
        begun = begun or (seen.step >= place.step and seen.given.get(place.quantity) == place.replayed)
        if begun and seen.kind == "leave" and generator in seen.drew:
            return seen
    return None
