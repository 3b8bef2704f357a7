"""What two ranks saw in the same step, held against each other in the order in which it happened.

What differs of equal things is to blame, and not what comes after it. An input that differs was made by the code of the
module that calls; an output of equal inputs, by the module itself. Pure.
"""

from collections.abc import Mapping, Sequence

import msgspec

from m5ws.records.explanation import Phase, Place
from m5ws.records.trace import Seen

_SCRIPT = "the script, outside the model"


def inside_step(one: Sequence[Seen], two: Sequence[Seen], rank: int, step: int) -> tuple[int, Place] | None:
    """Return the first difference in what a rank saw in a step, and its position. Without sight, there is none."""
    open_: list[str] = []
    known: dict[str, str] = {}
    last = ""
    for position, (old, new) in enumerate(zip(one, two, strict=False)):
        if _key(old) != _key(new):
            return position, _other(old, new, open_, rank, step)
        if "cut" in (old.kind, new.kind):
            return None
        if (found := _compared(old, new, open_, last, rank)) is not None:
            return position, msgspec.structs.replace(found, what=found.what or known.get(found.module or ""))
        if old.kind == "enter":
            open_.append(old.name)
            known[old.name] = old.what
        elif old.kind == "leave" and old.name in open_:
            del open_[open_.index(old.name) :]
        if old.kind in ("enter", "leave"):
            last = f"{old.kind} {old.name}"
    if len(one) != len(two) and one and two:
        longer = (one, two)[len(two) > len(one)]
        extra = longer[min(len(one), len(two))]
        sides = (named(extra), None) if longer is one else (None, named(extra))
        words = f"{'the original' if longer is one else 'the replay'} did more in the step: {named(extra)}"
        return min(len(one), len(two)), place(step, rank, "operations", "operations", sides, words, extra)
    return None


def _key(seen: Seen) -> tuple[str, str, int, str]:
    return seen.kind, seen.name, seen.call, seen.op if seen.kind == "backward" else ""


def _compared(old: Seen, new: Seen, open_: Sequence[str], last: str, rank: int) -> Place | None:
    """Return what differs between two sights of the same thing."""
    for was, now, came in ((old.given, new.given, True), (old.made, new.made, False)):
        for name in _ordered(different(was, now)):
            phase, words = _said(old, name, came, open_, last)
            found = place(old.step, rank, phase, name, (was.get(name), now.get(name)), words, old)
            what = old.what if old.what == new.what or not old.what else f"{old.what} → {new.what}"
            inner = _inner(old, name, came, open_)
            if inner is not None:
                found, what = msgspec.structs.replace(found, module=inner), ""
            alone = not came if old.kind in ("leave", "backward") else phase == "random numbers"
            return msgspec.structs.replace(found, tensor=_tensor(old, name), what=what or None, alone=alone)
    return None


def _tensor(seen: Seen, name: str) -> str | None:
    """Return the parameter or buffer that a difference is of, None if it is of none."""
    if seen.kind == "gradient":
        return seen.name
    if name.startswith(("parameter ", "buffer ")):
        return f"{seen.name}.{name.partition(' ')[2]}".lstrip(".")
    return name.removeprefix("gradient of ") if name.startswith("gradient of ") else None


def _ordered(names: Sequence[str]) -> list[str]:
    """Return names in the order in which one causes the other: settings, parameters, generators, then inputs."""
    order = ("setting", "batch", "parameter", "buffer", "generator")
    return sorted(names, key=lambda name: next((n for n, kind in enumerate(order) if name.startswith(kind)), 9))


def _inner(old: Seen, name: str, came: bool, open_: Sequence[str]) -> str | None:
    """Return the module whose own code made what another was given; None where the one seen is meant itself."""
    if old.kind == "enter" and came and name.startswith(("input", "generator")):
        return open_[-1] if open_ else ""
    return None


def _said(old: Seen, name: str, came: bool, open_: Sequence[str], last: str) -> tuple[Phase, str]:
    """Return the phase of a difference and what there is to say of it."""
    module = called(old.name)
    match old.kind:
        case "batch":
            return "batch", "the batch differs"
        case "enter" if name.startswith("generator"):
            return "random numbers", f"{name} differs when {module} begins, and all before it is equal"
        case "enter" if name.startswith(("parameter", "buffer")):
            return (
                "state",
                f"{name} of {module} differs when the module begins, though the state before the step is equal",
            )
        case "enter":
            return "forward", f"what {module} is given ({name}) was made otherwise in {_caller(open_)}"
        case "leave":
            after = "" if last == f"enter {old.name}" else ", in its own code after the last module inside it"
            return "forward", f"the output of {module} differs{after}, and all that it was given is equal"
        case "backward" if came:
            return (
                "backward",
                f"the gradient that reaches {old.op} of {module} differs, and what was seen before it is equal",
            )
        case "backward":
            return "backward", f"{old.op} of {module} makes another gradient from an equal one"
        case "gradient":
            return "gradient", f"the gradient of {old.name} differs, as it was added up (by FSDP: over ranks)"
        case _ if name.startswith("setting"):
            return "optimizer", f"the optimizer's {name.removeprefix('setting ')} differs"
        case _:
            return (
                "optimizer",
                f"the {name} differs when the optimizer begins, and not when it was made: reduction or clipping",
            )


def _caller(open_: Sequence[str]) -> str:
    return f"the code of {called(open_[-1])} itself" if open_ else _SCRIPT


def called(module: str) -> str:
    """Return a module's path for people."""
    return module or "the model"


def named(seen: Seen) -> str:
    """Return in words what was seen."""
    done = {"enter": "begin of ", "leave": "end of ", "backward": f"{seen.op} of ", "gradient": "gradient of "}
    return f"{done.get(seen.kind, f'{seen.kind} ')}{called(seen.name)}{f', time {seen.call}' if seen.call > 1 else ''}"


def _other(old: Seen, new: Seen, open_: Sequence[str], rank: int, step: int) -> Place:
    """Return that something else happened at the same position."""
    backward = "backward" in (old.kind, new.kind)
    same = backward and old.name == new.name
    module = old.name if same else (open_[-1] if open_ else "")
    where = f"the backward pass{f' of {called(old.name)}' if same else ''}" if backward else _caller(open_)
    words = f"other operations in {where}: {named(old)} in one, {named(new)} in the other"
    found = place(step, rank, "operations", "operations", (named(old), named(new)), words)
    return msgspec.structs.replace(found, module=module, op=old.op if same else None)


def place(
    step: int,
    rank: int,
    phase: Phase,
    quantity: str,
    values: tuple[str | None, str | None],
    words: str,
    seen: Seen | None = None,
) -> Place:
    """Return a place; `seen` says which module or operation it is at."""
    return Place(
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


def _module(seen: Seen) -> str | None:
    if seen.kind == "gradient":
        return seen.name.rpartition(".")[0]
    return seen.name if seen.kind in ("enter", "leave", "backward") else None


def different(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the names whose values differ, in the order of the first, then of the second."""
    return [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
