"""Why two runs differ: the recorded changes, held against the quantity that differed first.

It names what fits, the most consistent first, and never more: several changes that fit are several, and
where no recorded input differs the answer is that the cause is unknown.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from m5ws.comparisons import Change, Divergence
from m5ws.operations.drift import title
from m5ws.operations.signs import MARK, Sign

Kind = Literal["learning rate", "batch", "initial state", "generator", "arithmetic", "result"]

_LISTED = 8
_UNKNOWN = "unknown"
_RATE = ("*lr*", "*learning_rate*", "*sched*", "*warmup*", "*decay*", "*steps*", "*epochs*", "*anneal*")
_BATCHES = (
    "*batch*",
    "*seq*",
    "*block*",
    "*context*",
    "*data*",
    "*token*",
    "*shuffle*",
    "*split*",
    "*seed*",
    "*workers*",
    "*accum*",
)
_MODEL = (
    "*seed*",
    "*init*",
    "*model*",
    "*layer*",
    "*head*",
    "*dim*",
    "*embd*",
    "*vocab*",
    "*width*",
    "*depth*",
    "*dtype*",
)
_RANDOM = ("*seed*", "*dropout*", "*workers*", "*shuffle*", "*random*")
_UPDATE = (
    "*dropout*",
    "*lr*",
    "*clip*",
    "*beta*",
    "*decay*",
    "*eps*",
    "*dtype*",
    "*precision*",
    "*compile*",
    "*accum*",
    "*fused*",
    "*optim*",
    "*loss*",
    "*zero*",
    "*bucket*",
)
_WORLD = {("launch", "nproc"), ("environment", "world")}
_LIBRARIES = ("distribution.torch", "distribution.numpy", "distribution.tokenizers", "python", "torch*")

# For each first difference of state, of a quantity or of what a script leaves behind (metrics, files):
# which changes explain it, the best first: (part, patterns of names).
_EXPLAINS: dict[Kind, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "learning rate": (
        ("config", _RATE),
        ("code", ("*",)),
        ("launch", ("command", "environment.*", "nproc")),
        ("config", ("*",)),
    ),
    "batch": (
        ("tokenizer", ("*",)),
        ("data", ("*",)),
        ("launch", ("seed", "nproc")),
        ("config", _BATCHES),
        ("environment", ("world",)),
        ("code", ("*",)),
        ("determinism", ("python_hash_seed",)),
        ("launch", ("command", "environment.*")),
        ("environment", (*_LIBRARIES, "variable.PYTHONHASHSEED")),
    ),
    "initial state": (
        ("launch", ("seed",)),
        ("config", _MODEL),
        ("code", ("*",)),
        ("tokenizer", ("*",)),
        ("launch", ("command", "environment.*", "nproc", "trainer")),
        ("environment", ("world", *_LIBRARIES, "cpu.capability")),
        ("config", ("*",)),
    ),
    "generator": (
        ("launch", ("seed", "nproc")),
        ("config", _RANDOM),
        ("code", ("*",)),
        ("launch", ("command", "environment.*")),
        ("environment", ("world", *_LIBRARIES)),
        ("config", ("*",)),
    ),
    "arithmetic": (
        ("determinism", ("threads", "tf32")),
        ("environment", ("threads", "cpu.capability", "world", "gpu.model", "variable.MKL_CBWR", "variable.ONEDNN_*")),
        ("launch", ("nproc", "trainer")),
        ("config", _UPDATE),
        ("code", ("*",)),
        ("environment", ("*",)),
        ("determinism", ("*",)),
        ("launch", ("seed", "command", "environment.*")),
        ("config", ("*",)),
    ),
    "result": (
        ("launch", ("seed",)),
        ("config", ("*",)),
        ("code", ("*",)),
        ("data", ("*",)),
        ("tokenizer", ("*",)),
        ("launch", ("*",)),
        ("determinism", ("*",)),
        ("environment", ("*",)),
    ),
}


def kind(first: Divergence) -> Kind:
    """Return what sort of quantity differed first; it decides which changes can have been its cause."""
    name = first.quantity.lower()
    if name.startswith(("metric ", "file ")):
        return "result"
    if first.step == 0:
        return "initial state"
    if name.startswith("generator "):
        return "generator"
    if _of_state(first):
        return "arithmetic"
    if name == "batch":
        return "batch"
    rate = re.search(r"(^|[^a-z])(lr|learning[ _.-]?rate)([^a-z]|$)", name)
    return "learning rate" if rate else "arithmetic"


def ranked(first: Divergence, changes: Sequence[Change]) -> tuple[list[Change], list[Change]]:
    """Return the changes that can alter bits: those that explain `first`, the best first, and the others.

    Changes that the table says cannot alter bits are left out.
    """
    rules = _EXPLAINS[kind(first)]
    able = [change for change in changes if change.rating != "cannot"]
    places = {id(change): _place(rules, change) for change in able}
    # A change that is known to alter bits comes before one that may, among those that explain as well.
    able.sort(key=lambda change: (places[id(change)], change.rating != "does"))
    return (
        [change for change in able if places[id(change)] < len(rules)],
        [change for change in able if places[id(change)] == len(rules)],
    )


def reason(first: Divergence | None, changes: Sequence[Change], sign: Sign | None = None) -> str | None:
    """Return the most plausible cause of a divergence in words, None where nothing diverged.

    It says what the recorded changes allow: one that explains the first difference, several without a
    choice between them, or that the cause is unknown. A `sign` that is strong comes before them, another after them.
    """
    if first is None:
        return None
    fitting, others = ranked(first, changes)
    where = f"the first difference is {named(first)}"
    if sign is not None and sign.strong:
        beside = f"; recorded changes, of which none is needed for that: {_list([*fitting, *others])}"
        return f"{sign}; {where}{beside if fitting or others else ''}"
    if not fitting and not others:
        return _unknown(first, changes, where, sign)
    said = _recorded(fitting, others, where)
    return said if sign is None else f"{said}. By what differs and what does not, it points to {sign}"


def _recorded(fitting: Sequence[Change], others: Sequence[Change], where: str) -> str:
    """Return what recorded changes that can alter bits have to do with a first difference."""
    if not fitting:
        return (
            f"{where}, which none of the recorded changes explains at first sight; "
            f"those that can change bits: {_list(others)}"
        )
    rest = f"; less consistent with it: {_list(others)}" if others else ""
    if len(fitting) == 1 and not others:
        return f"{_one(fitting[0])} is the only recorded change that can alter bits, and {where}"
    if len(fitting) == 1:
        return f"most plausibly {_one(fitting[0])}: {where}{rest}"
    return f"{where}; {len(fitting)} recorded changes fit, most consistent first: {_list(fitting)}{rest}"


def _unknown(first: Divergence, changes: Sequence[Change], where: str, sign: Sign | None) -> str:
    # Imports of processes that ranks start by `spawn` or `exec` are not recorded.
    unseen = [change for change in changes if (change.detail or "").endswith("imported it")]
    unless = f", unless a process that a rank started imported it: {_list(unseen)}" if unseen else ""
    harmless = f" that can change bits ({len(changes)} that cannot{unless})" if changes else ""
    return f"{_UNKNOWN}: no recorded input differs{harmless}; {where}, which points to {sign or pointer(first)}"


def is_unknown(said: str | None) -> bool:
    """Return whether `reason` said that no recorded change explains a divergence."""
    return (said or "").startswith(_UNKNOWN)


def known_of(said: str | None, first: Divergence) -> str:
    """Return the known facts of a divergence without a known cause; the guess of a single replay is left out."""
    rest = (said or "").removeprefix(f"{_UNKNOWN}: ").removesuffix(f", which points to {pointer(first)}")
    return rest[:1].upper() + rest[1:]


def is_sign(said: str | None) -> bool:
    """Return whether `reason` rests on what differs in the original, and not on a recorded change."""
    return (said or "").startswith(MARK)


def pointer(first: Divergence) -> str:
    """Return what a first difference points to where no recorded change explains it."""
    causes = {
        "learning rate": "a schedule that depends on time or on state that was not restored",
        "batch": "a loader whose order is not seeded, or that reads what the snapshot does not hold",
        "initial state": "weights drawn without the run's seed, or read from outside the snapshot",
        "generator": "random numbers drawn in another order, for example by loader workers or threads",
        "result": "something that the script does not seed, or reads from outside the snapshot",
        "arithmetic": "an operation that is not deterministic, or an input that is not recorded",
    }
    return causes[kind(first)]


def named(first: Divergence) -> str:
    """Return in words where something differed first."""
    if _of_state(first):
        return f"{first.quantity} {f'after step {first.step}' if first.step else 'before the first step'}"
    if first.quantity.startswith("file "):
        return first.quantity
    seen = f" (tensor {first.tensor} differs after step {first.tensor_step})" if first.tensor is not None else ""
    return f"{first.quantity} at step {first.step} on rank {first.rank}{seen}"


def _of_state(first: Divergence) -> bool:
    """Return whether it is state after a step that differs, and not something that was seen within one."""
    return first.quantity.startswith(("tensor ", "generator ", "checkpoint"))


def _place(rules: Sequence[tuple[str, tuple[str, ...]]], change: Change) -> int:
    """Return the first rule that explains the change, their number if none does."""
    name = change.name.lower() if change.part == "config" else change.name
    for place, (part, patterns) in enumerate(rules):
        if part == change.part and any(fnmatchcase(name, pattern) for pattern in patterns):
            return place
    return len(rules)


def _list(changes: Sequence[Change]) -> str:
    shown = [f"({number}) {_one(change)}" for number, change in enumerate(changes[:_LISTED], 1)]
    more = f"; and {len(changes) - _LISTED} more" if len(changes) > _LISTED else ""
    return "; ".join(shown) + more


def _one(change: Change) -> str:
    """Return a change in words; of a file only that it changed, for digests say nothing to people."""
    if change.part in ("code", "tokenizer") and change.name not in {"probe ids", "commit"}:
        done = "added" if change.old is None else "removed" if change.new is None else "changed"
        return f"{change.part} {change.name} was {done}"
    if (change.part, change.name) in _WORLD:
        return f"{title(change)} (reduction order, world size)"
    if change.part == "data" and change.detail:
        return f"data {change.name} ({change.detail.splitlines()[0]})"
    return title(change)
