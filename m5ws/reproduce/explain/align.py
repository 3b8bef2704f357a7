"""Alignment of two traces of one step, in the order of their events. Pure.

The first difference is to blame, not a later difference that follows from it. A different input was made by the code of
the calling module. A different output of equal inputs was made by the module itself.
"""

from collections.abc import Sequence

import msgspec

from m5ws.records.explanation import FirstDifference, Phase
from m5ws.records.trace import TraceEntry
from m5ws.reproduce.compare import differing

_SCRIPT = "the script, outside the model"


def inside_step(
    first: Sequence[TraceEntry], two: Sequence[TraceEntry], rank: int, step: int
) -> tuple[int, FirstDifference] | None:
    """Return the first difference between two traces of a step, and its position; None without traces."""
    open_: list[str] = []
    known: dict[str, str] = {}
    last = ""
    for position, (old, new) in enumerate(zip(first, two, strict=False)):
        if _key(old) != _key(new):
            return position, _other(old, new, open_, rank, step)
        if "cut" in (old.kind, new.kind):
            return None
        if (difference := _compared(old, new, open_, last, rank)) is not None:
            return position, msgspec.structs.replace(
                difference, what=difference.what or known.get(difference.module or "")
            )
        if old.kind == "enter":
            open_.append(old.name)
            known[old.name] = old.what
        elif old.kind == "leave" and old.name in open_:
            del open_[open_.index(old.name) :]
        if old.kind in ("enter", "leave"):
            last = f"{old.kind} {old.name}"
    if len(first) != len(two) and first and two:
        longer = (first, two)[len(two) > len(first)]
        extra = longer[min(len(first), len(two))]
        sides = (display_name(extra), None) if longer is first else (None, display_name(extra))
        words = f"only one of the two runs has this in the step: {display_name(extra)}"
        return min(len(first), len(two)), locate(step, rank, "operations", "operations", sides, words, extra)
    return None


def _key(seen: TraceEntry) -> tuple[str, str, int, str]:
    return seen.kind, seen.name, seen.call, seen.op if seen.kind == "backward" else ""


def _compared(old: TraceEntry, new: TraceEntry, open_: Sequence[str], last: str, rank: int) -> FirstDifference | None:
    """Return the first difference between two trace entries of the same event."""
    for was, now, came in ((old.given, new.given, True), (old.made, new.made, False)):
        for name in _ordered(differing(was, now)):
            phase, words = _described(old, name, came, open_, last)
            difference = locate(old.step, rank, phase, name, (was.get(name), now.get(name)), words, old)
            if (inner := _inner(old, name, came, open_)) is not None:
                difference = msgspec.structs.replace(difference, module=inner, what=None)
            elif old.what and old.what != new.what:
                difference = msgspec.structs.replace(difference, changed=new.what)
            alone = not came if old.kind in ("leave", "backward") else phase == "random numbers"
            return msgspec.structs.replace(difference, tensor=_tensor(old, name), alone=alone)
    return None


def _tensor(seen: TraceEntry, name: str) -> str | None:
    """Return the parameter or buffer that a difference belongs to, None if it belongs to none."""
    if seen.kind == "gradient":
        return seen.name
    if name.startswith(("parameter ", "buffer ")):
        return f"{seen.name}.{name.partition(' ')[2]}".lstrip(".")
    return name.removeprefix("gradient of ") if name.startswith("gradient of ") else None


def _ordered(names: Sequence[str]) -> list[str]:
    """Return names in causal order: settings, the batch, parameters, buffers and generators, then inputs."""
    order = ("setting", "batch", "parameter", "buffer", "generator")
    return sorted(names, key=lambda name: next((n for n, kind in enumerate(order) if name.startswith(kind)), 9))


def _inner(old: TraceEntry, name: str, came: bool, open_: Sequence[str]) -> str | None:
    """Return the module whose own code made a different input; None if the entry's own module is meant."""
    if old.kind == "enter" and came and name.startswith(("input", "generator")):
        return open_[-1] if open_ else ""
    return None


def _described(old: TraceEntry, name: str, came: bool, open_: Sequence[str], last: str) -> tuple[Phase, str]:
    """Return the phase of a difference, and its description."""
    module = called(old.name)
    match old.kind:
        case "batch":
            return "batch", "the batch differs"
        case "enter" if name.startswith("generator"):
            return "random numbers", f"{name} differs when {module} begins, and everything before is equal"
        case "enter" if name.startswith(("parameter", "buffer")):
            return (
                "state",
                f"{name} of {module} differs when the module begins, although the state before the step is equal",
            )
        case "enter":
            return "forward", f"the input of {module} ({name}) differs: {_caller(open_)} computed different bits"
        case "leave":
            after = "" if last == f"enter {old.name}" else ", in its own code after its last inner module"
            return "forward", f"the output of {module} differs{after}, and all of its inputs are equal"
        case "backward" if came:
            return (
                "backward",
                f"the gradient that reaches {old.op} of {module} differs, and everything before is equal",
            )
        case "backward":
            return "backward", f"{old.op} of {module} computes a different gradient from an equal gradient"
        case "gradient":
            return "gradient", f"the gradient of {old.name} differs after it was summed (by FSDP: over ranks)"
        case _ if name.startswith("setting"):
            return "optimizer", f"the optimizer's {name.removeprefix('setting ')} differs"
        case _:
            return (
                "optimizer",
                f"the {name} differs when the optimizer begins, and was equal when it was made: reduction or clipping",
            )


def _caller(open_: Sequence[str]) -> str:
    return f"the code of {called(open_[-1])} itself" if open_ else _SCRIPT


def called(module: str) -> str:
    """Return the display name of a module."""
    return module or "the model"


def display_name(seen: TraceEntry) -> str:
    """Return the display name of a trace entry."""
    done = {"enter": "begin of ", "leave": "end of ", "backward": f"{seen.op} of ", "gradient": "gradient of "}
    return f"{done.get(seen.kind, f'{seen.kind} ')}{called(seen.name)}{f', time {seen.call}' if seen.call > 1 else ''}"


def _other(old: TraceEntry, new: TraceEntry, open_: Sequence[str], rank: int, step: int) -> FirstDifference:
    """Return the place where two traces have different events at one position."""
    backward = "backward" in (old.kind, new.kind)
    same = backward and old.name == new.name
    module = old.name if same else (open_[-1] if open_ else "")
    where = f"the backward pass{f' of {called(old.name)}' if same else ''}" if backward else _caller(open_)
    words = f"different operations in {where}: {display_name(old)} in one run, {display_name(new)} in the other run"
    difference = locate(step, rank, "operations", "operations", (display_name(old), display_name(new)), words)
    return msgspec.structs.replace(difference, module=module, op=old.op if same else None)


def locate(
    step: int,
    rank: int,
    phase: Phase,
    quantity: str,
    values: tuple[str | None, str | None],
    words: str,
    seen: TraceEntry | None = None,
) -> FirstDifference:
    """Return a place, at the module or operation of the trace entry `seen`."""
    return FirstDifference(
        step=step,
        rank=rank,
        phase=phase,
        quantity=quantity,
        original=values[0],
        replayed=values[1],
        words=words,
        module=_module(seen) if seen is not None else None,
        what=(seen.what or None) if seen is not None else None,
        op=seen.op if seen is not None and seen.kind == "backward" else None,
    )


def _module(seen: TraceEntry) -> str | None:
    if seen.kind == "gradient":
        return seen.name.rpartition(".")[0]
    return seen.name if seen.kind in ("enter", "leave", "backward") else None
