"""The cause of a difference, by rules: each a small function of the evidence, which names a cause or nothing.

A cause is *certain* only where the evidence leaves no other: what differs first is itself the thing that the cause
names, or two replays on this machine, each of which repeats what its side had shown, differ in nothing else that is
recorded.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import msgspec

from m5ws.environment import drift
from m5ws.records.explanation import Cause, CauseKind, Place
from m5ws.records.trace import Seen
from m5ws.records.verdict import Change
from m5ws.reproduce.explain.align import called, inside_step
from m5ws.reproduce.explain.locate import Look
from m5ws.runs.history import History

# The kinds of recorded changes: (part, patterns of names). The first that matches wins.
_OF_CHANGES: tuple[tuple[CauseKind, str, tuple[str, ...]], ...] = (
    ("thread count", "determinism", ("threads",)),
    ("thread count", "environment", ("threads*", "variable.OMP_*", "variable.MKL_*THREADS", "variable.MKL_DYNAMIC")),
    ("vector capability", "environment", ("cpu.*", "platform", "variable.ATEN_CPU_CAPABILITY", "variable.MKL_*")),
    ("vector capability", "environment", ("variable.ONEDNN_*", "variable.DNNL_*")),
    ("reduction order, world size", "launch", ("nproc",)),
    ("reduction order, world size", "environment", ("world",)),
    ("library version", "environment", ("distribution.*", "python*", "torch*", "loaded.*", "mkl", "onednn", "glibc")),
    ("library version", "environment", ("cu*", "nccl*", "aws-ofi-nccl*", "libfabric*", "efa*", "deepspeed*")),
    ("library version", "declared", ("*",)),
    ("changed data", "data", ("*",)),
    ("changed data", "tokenizer", ("*",)),
    ("seed", "launch", ("seed",)),
    ("changed code", "code", ("*",)),
    ("changed config", "config", ("*",)),
    ("changed input", "*", ("*",)),
)
_KINDS = list(dict.fromkeys(kind for kind, _, _ in _OF_CHANGES))
_SETTINGS = "m5ws.toml"
_SHOWN = 4
_DROPOUT = re.compile(r"drop", re.IGNORECASE)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs that were held against each other have shown: `place` is where they part.

    `changes` are the recorded differences between them. `same`: they are two replays of the same. `controlled`: both
    repeat what their side had shown, and the second one repeats itself, so that nothing but `changes` can have made
    the difference, if nothing that is not recorded did. `recorded` is the original's ledger.
    """

    place: Place
    one: Look
    two: Look
    changes: Sequence[Change]
    same: bool
    controlled: bool
    recorded: History


Rule = Callable[[Evidence], Cause | None]


def found(evidence: Evidence) -> tuple[Cause, ...]:
    """Return the causes that fit, the likeliest first; `unknown` if none does."""
    rules: tuple[Rule, ...] = (_kernel,) if evidence.same else ()
    rules += (_order_of_data, _random_numbers, _setting, _optimizer)
    by_rule = [cause for rule in rules if (cause := rule(evidence)) is not None]
    causes = (*by_rule, *of_changes(evidence.changes, certain=evidence.controlled and not evidence.same))
    return tuple(sorted(causes, key=lambda cause: not cause.certain)) or (Cause(kind="unknown"),)


def of_changes(changes: Sequence[Change], *, certain: bool) -> tuple[Cause, ...]:
    """Return the causes that recorded changes are, by kind; `certain` if they can be, and one kind is all there is."""
    kinds: dict[CauseKind, list[Change]] = {}
    for change in sorted(_able(changes), key=lambda one: _KINDS.index(kind(one))):
        kinds.setdefault(kind(change), []).append(change)
    alone = certain and len(kinds) == 1
    return tuple(
        Cause(
            kind=one,
            certain=alone,
            evidence=(
                *map(drift.title, of[:_SHOWN]),
                *((f"and {len(of) - _SHOWN} more",) if len(of) > _SHOWN else ()),
                *(("two replays here that differ in this alone differ from each other",) if alone else ()),
            ),
        )
        for one, of in kinds.items()
    )


def _able(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that can alter bits; m5ws's own settings are in what they set, where that is recorded."""
    able = [change for change in changes if change.rating != "cannot"]
    if any(change.part in ("determinism", "launch", "declared") for change in able):
        return [change for change in able if (change.part, change.name) != ("code", _SETTINGS)]
    return able


def kind(change: Change) -> CauseKind:
    """Return the kind of cause that a recorded change is."""
    return next(
        one
        for one, part, patterns in _OF_CHANGES
        if fnmatchcase(change.part, part) and any(fnmatchcase(change.name, pattern) for pattern in patterns)
    )


# --- rules --------------------------------------------------------------------------------------------------------


def _kernel(evidence: Evidence) -> Cause | None:
    """Of two replays of the same: an operation that makes different bits of equal ones."""
    place = evidence.place
    if not place.alone or place.phase not in ("forward", "backward"):
        return None
    warned = _warnings(evidence, place.step)
    operations = place.op or ", ".join(_operations(evidence)) or place.what
    said = [
        f"{operations} of {called(place.module or '')} made different bits of equal ones in two replays of the same"
    ]
    own = [one for one in warned if (_names(one.op, place.op) if place.op else one.name == place.module)]
    said += [f"torch says: {one.op}" for one in own[:_SHOWN]]
    if not warned:
        said.append(
            "torch knows no operation in it that is not deterministic: another library's, or an input from outside"
        )
    return Cause(kind="nondeterministic kernel", certain=bool(own), evidence=tuple(said))


def _order_of_data(evidence: Evidence) -> Cause | None:
    """The batches have the same samples in another order, or come at other steps or ranks."""
    place = evidence.place
    if place.phase != "batch":
        return None
    one, two = (_samples(look, place) for look in (evidence.one, evidence.two))
    if one and one == two:
        said = "its samples are the same, in the same order: what differs is something else that the batch holds"
        return Cause(kind="changed data", evidence=(said,))
    if one and two and sorted(one) == sorted(two):
        return Cause(kind="data order", certain=True, evidence=("the batch has the same samples in another order",))
    batch = _batch(evidence.two.history, place.rank, place.step)
    for rank, steps in evidence.recorded.steps.items():
        for step, event in steps.items():
            if batch is not None and event.batch == batch and (rank, step) != (place.rank, place.step):
                said = f"the replay's batch is the one that rank {rank} of the original was given at step {step}"
                return Cause(kind="data order", certain=True, evidence=(said,))
    if shared := set(one) & set(two):
        said = f"{len(shared)} of {len(one)} samples of the batch are the same, and others come with them"
        return Cause(kind="data order", evidence=(said,))
    if not any(kind(change) in ("changed data", "changed code") for change in evidence.changes):
        said = (
            "the batch differs, and neither data nor code is known to: the samples come in another order, or are drawn"
        )
        return Cause(kind="data order", evidence=(said,))
    return None


def _random_numbers(evidence: Evidence) -> Cause | None:
    """A generator stands elsewhere; certain where all beside and before it is equal."""
    place = evidence.place
    if place.phase != "random numbers":
        return None
    said = [place.words]
    drawing = _next_drawing(evidence, place)
    if drawing is not None:
        said.append(f"{called(drawing.name)} ({drawing.what}) draws from it next, in step {drawing.step}")
    dropout = drawing is not None and _DROPOUT.search(drawing.what) is not None
    return Cause(kind="dropout RNG" if dropout else "random numbers", certain=place.alone, evidence=tuple(said))


def _setting(evidence: Evidence) -> Cause | None:
    """A module of torch's own, given the same, has other settings; of others it is not known what they stand for."""
    place = evidence.place
    old, arrow, new = (place.what or "").partition(" → ")
    if not place.alone or not arrow:
        return None
    torchs = old.startswith("torch.nn.") and old.partition("(")[0] == new.partition("(")[0]
    which: CauseKind = "dropout RNG" if _DROPOUT.search(old.partition("(")[0]) else "module setting"
    return Cause(kind=which, certain=torchs, evidence=(f"{called(place.module or '')}: {place.what}",))


def _optimizer(evidence: Evidence) -> Cause | None:
    """The optimizer's own settings are the first thing that differs."""
    place = evidence.place
    if place.phase != "optimizer" or not place.quantity.startswith("setting"):
        return None
    said = f"{place.quantity.removeprefix('setting ')}: {place.original} → {place.replayed}"
    return Cause(kind="optimizer setting", certain=True, evidence=(said,))


def _names(warning: str, op: str) -> bool:
    """Return whether torch's words name a backward operation; in the backward pass no module is under way."""
    return op.removesuffix("0").removesuffix("Backward").lower() in warning.replace("_", "").lower()


# --- evidence -----------------------------------------------------------------------------------------------------


def _warnings(evidence: Evidence, step: int) -> list[Seen]:
    every = [*evidence.one.seen.values(), *evidence.two.seen.values()]
    return [one for seen in every for one in seen if one.kind == "warning" and one.step == step]


def _operations(evidence: Evidence) -> list[str]:
    """Return the operations of the module whose forward pass differs."""
    place = evidence.place
    seen = evidence.two.in_step(place.rank, place.step)
    position = inside_step(evidence.one.in_step(place.rank, place.step), seen, place.rank, place.step)
    return seen[position[0]].op.replace("Backward0", "").split() if position is not None else []


def _samples(look: Look, place: Place) -> list[str]:
    """Return the digests of the samples of all batches of a step."""
    seen = [one for one in look.in_step(place.rank, place.step) if one.kind == "batch"]
    return [digest for one in seen for name, digest in one.given.items() if name.startswith("sample ")]


def _batch(history: History, rank: int, step: int) -> str | None:
    event = history.steps.get(rank, {}).get(step)
    return event.batch if event is not None else None


def _next_drawing(evidence: Evidence, place: Place) -> Seen | None:
    """Return the first module that draws from the generator that differs, at its place or after it."""
    generator = place.quantity.removeprefix("generator ")
    begun = False
    for seen in evidence.two.seen.get(place.rank, ()):
        begun = begun or (seen.step >= place.step and seen.given.get(place.quantity) == place.replayed)
        if begun and seen.kind == "leave" and generator in seen.drew:
            return seen
    return None
