"""Faults of nine kinds, each planted at a random step of a run, and the expected reason of each.

A reason is *right* if it names the kind's own cause, *wrong* if it names another, and unknown if it names none.
"""

import random
import re
from collections.abc import Callable
from typing import Any

import msgspec

from m5ws.errors import M5Error
from m5ws.records import codec
from m5ws.records.ledger import State, Step
from m5ws.records.verdict import Verdict
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.reproduce.segments import JointResult
from m5ws.runs import history
from m5ws.wording.sentences import describe
from tests.support.faults.faulty_runs import EVERY, STEPS, Runs
from tests.support.records.told_run import batches, forge_end, write

_UNRECORDED = r"no recorded change explains the difference|distribution\.gauge: \S+ → \S+ is the only recorded change"
"""The library `gauge` has another version in some replays. It is a recorded change, and the fault is not recorded."""
CAUSES = {
    "bit of a weight": _UNRECORDED,
    "batch": _UNRECORDED,
    "order of samples": _UNRECORDED,
    "optimizer's beta": _UNRECORDED,
    "library version": r"distribution\.ruler: 1\.0 → 2\.0",
    "threads": r"threads of rank \d in step \d+: 2 → 1",
    "dropout off": _UNRECORDED,
    "RNG draw after resume": r"the resume of the original after step \d+",
    "ledger event": r"batch runs/\S+ was modified after|was edited after the run",
}
_EQUAL = ("reproduced", "sampled")
_WEIGHTS = 16 * 48 + 48 + 48 * 8 + 8


class Planted(msgspec.Struct, frozen=True):
    """A run with a fault of a kind. The fault first shows at `step`, after the segment's `first`.

    `what` is the edited batch, if a refusal to replay names it.
    """

    kind: str
    run: str
    step: int
    what: str = ""

    @property
    def first(self) -> int:
        return (self.step - 1) // EVERY * EVERY


class Said(msgspec.Struct, frozen=True):
    """The result for a planted fault. `cause` is right, unknown or wrong."""

    found: bool
    segment: bool
    step: bool
    cause: str
    words: str


def judged(planted: Planted, answer: JointResult | M5Error) -> Said:
    """Compare the result of a run with its planted fault."""
    if isinstance(answer, M5Error):
        words = str(answer)
        found, segment, step = True, _is_placed(words, planted), _is_placed(words, planted)
    else:
        bad = next((verdict for verdict in answer.verdicts if verdict.outcome != "sampled"), None)
        words = describe(bad) if bad is not None else ""
        found = bad is not None and answer.outcome not in _EQUAL
        placed = bad is not None and bad.outcome == "not comparable" and _is_placed(words, planted)
        segment = placed or (bad is not None and bad.segment is not None and bad.segment.first == planted.first)
        step = placed or (bad is not None and _step(bad) == planted.step)
    named = {kind for kind, pattern in CAUSES.items() if re.search(pattern, words, re.IGNORECASE)}
    cause = "right" if planted.kind in named else "wrong" if named else "unknown"
    return Said(found, segment, step, cause, words)


def _step(bad: Verdict) -> int:
    """Return the step in a verdict, or else the first step of its segment."""
    assert bad.segment is not None
    return bad.first.step if bad.first is not None else bad.segment.first + 1


def _is_placed(words: str, planted: Planted) -> bool:
    """Return True if an error about damage names the place: the batch or the segment."""
    if planted.what and planted.what in words:
        return True
    match = re.search(r"steps (\d+)-(\d+) is false", words)
    return match is not None and (int(match[1]), int(match[2])) == (planted.first + 1, planted.first + EVERY)


# --- plants -------------------------------------------------------------------------------------------------------


def plant(kind: str, runs: Runs, draw: random.Random) -> Planted:
    """Make a run with a fault at a random step."""
    nproc = 2 if draw.random() < 0.2 else 1
    return _KINDS[kind](runs, draw, draw.randrange(1, STEPS + 1), {"seed": draw.randrange(10**6), "nproc": nproc})


def _simple(kind: str, name: str, more: Callable[[random.Random], dict[str, Any]]) -> "_Plant":
    def planting(runs: Runs, draw: random.Random, step: int, given: dict[str, int]) -> Planted:
        fault = {"kind": name, "step": step, "rank": draw.randrange(given["nproc"]), **more(draw)}
        if name == "beta":
            del fault["rank"]
        return Planted(kind, runs.train(fault, **given), step)

    return planting


def _order(runs: Runs, draw: random.Random, step: int, given: dict[str, int]) -> Planted:
    """Swap two batches, or two samples of one or two batches; the first of them is in `step`."""
    step = min(step, STEPS - 1)
    first = 4 * (step - 1)
    if draw.random() < 0.5:
        places, width = [first, 4 * draw.randrange(step, STEPS)], 4
    else:
        index = first + draw.randrange(4)
        places, width = [index, draw.choice([place for place in range(first, 4 * STEPS) if place != index])], 1
    fault = {"kind": "order", "step": step, "places": places, "width": width, "rank": draw.randrange(given["nproc"])}
    return Planted("order of samples", runs.train(fault, **given), step)


def _threads(runs: Runs, draw: random.Random, step: int, given: dict[str, int]) -> Planted:
    """Use two threads from a step to its segment's end. A run without the fault gives the first step that differs.

    If two threads give the bits of one, there is no fault, and another seed is drawn.
    """
    until = (step + EVERY - 1) // EVERY * EVERY
    fault = {"kind": "threads", "step": step, "until": until, "threads": 2, "rank": draw.randrange(given["nproc"])}
    apart = None
    while apart is None:
        given["seed"] = draw.randrange(10**6)
        run, twin = runs.train(fault, **given), runs.train(**given)
        apart = _apart(runs.repo, run, twin)
    return Planted("threads", run, apart)


def _apart(repo: Repository, run: str, twin: str) -> int | None:
    """Return the first step whose record differs."""
    original, unplanted = (history.load(repo, name) for name in (run, twin))
    for step in range(1, STEPS + 1):
        for rank in original.steps:
            here, there = ((side.steps[rank][step], side.states[rank][step]) for side in (original, unplanted))
            if here[0].quantities != there[0].quantities or here[1].tensors != there[1].tensors:
                return step
    return None


def _draw(runs: Runs, draw: random.Random, step: int, given: dict[str, int]) -> Planted:
    """Stop an attempt in `step`, and draw one extra number after the next attempt has restored its checkpoint."""
    step = max(step, EVERY + 1)
    resumed = (step - 1) // EVERY * EVERY + 1
    fault = {"kind": "draw", "step": resumed, "rank": draw.randrange(given["nproc"])}
    run = runs.train({"kind": "stop", "step": step}, fault, **given)
    return Planted("RNG draw after resume", run, resumed)


def _library(runs: Runs, draw: random.Random, step: int, given: dict[str, int]) -> Planted:
    run = runs.train(**given)
    runs.upgrade(step, draw.choice([1.001, 0.5, 1.0 + 2**-20]))
    return Planted("library version", run, step)


def _ledger(runs: Runs, draw: random.Random, step: int, given: dict[str, int]) -> Planted:
    """Edit an event of a step: its bytes alone, with a new chain after it, or with a new end of the attempt too."""
    run, way = runs.train(**given), draw.choice(["bytes", "chain", "all"])
    chain = batches(runs.repo, run, "0")
    quantity = draw.choice(["loss", "grad_norm", "batch", "tensor"])
    place = next(
        (seq, number)
        for seq, events in enumerate(chain)
        for number, event in enumerate(events)
        if _is_of(ledger.decode_event(event), step, quantity)
    )
    event = ledger.decode_event(chain[place[0]][place[1]])
    assert isinstance(event, Step | State)
    chain[place[0]][place[1]] = codec.encode(_false(event, quantity))
    write(runs.repo, run, "0", chain, forged=way != "bytes")
    if way == "all":
        forge_end(runs.repo, run)
    return Planted("ledger event", run, step, f"/0001/0/{place[0]:08d}" if way == "bytes" else "")


def _is_of(event: object, step: int, quantity: str) -> bool:
    kind = State if quantity == "tensor" else Step
    return isinstance(event, kind) and event.step == step


def _false(event: Step | State, quantity: str) -> Step | State:
    """Return an event with a false value that looks plausible."""
    if isinstance(event, State):
        name = "model.last.bias"
        return msgspec.structs.replace(event, tensors=event.tensors | {name: _other(event.tensors[name])})
    if quantity == "batch":
        return msgspec.structs.replace(event, batch=_other(event.batch or ""))
    value = (float.fromhex(event.quantities[quantity]) * (1 + 2**-20)).hex()
    return msgspec.structs.replace(event, quantities=event.quantities | {quantity: value})


def _other(digest: str) -> str:
    return digest[:-1] + ("0" if digest[-1] != "0" else "1")


_Plant = Callable[[Runs, random.Random, int, dict[str, int]], Planted]
_KINDS: dict[str, _Plant] = {
    "bit of a weight": _simple(
        "bit of a weight", "weight", lambda draw: {"element": draw.randrange(_WEIGHTS // 2), "bit": draw.randrange(31)}
    ),
    "batch": _simple("batch", "batch", lambda draw: {"element": draw.randrange(64), "bit": draw.randrange(12, 31)}),
    "order of samples": _order,
    "optimizer's beta": _simple(
        "optimizer's beta",
        "beta",
        lambda draw: {"betas": draw.choice([[0.8, 0.999], [0.9, 0.99], [0.95, 0.999], [0.9, 0.9999]])},
    ),
    "library version": _library,
    "threads": _threads,
    "dropout off": _simple("dropout off", "dropout", lambda draw: {"way": draw.randrange(2)}),
    "RNG draw after resume": _draw,
    "ledger event": _ledger,
}
