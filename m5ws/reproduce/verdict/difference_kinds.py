"""Kinds of first differences, and the recorded changes that explain each.

A change explains a first difference if it affects the quantity that differs first, and can cause the other differences
at that step. Both conditions are tables: a change without a rule does not explain the difference.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from m5ws.records.verdict import Change, Divergence, is_result, is_state

Kind = Literal["learning rate", "batch", "initial state", "generator", "arithmetic", "result"]
Traces = Literal["computation", "data", "draws", "update", "lone tensor", "record", "threads", "resume", "store"]
"""The pattern of a hint (`hints`): all differences at the first step that differs."""
Rules = tuple[tuple[str, tuple[str, ...]], ...]
"""(part, patterns of names) of changes, the best explanation first."""

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
_LIBRARIES = ("distribution.torch", "distribution.numpy", "distribution.tokenizers", "python", "torch*")

# For each kind of first difference, the changes that explain it, the best first: (part, patterns of names).
_EXPLAINS: dict[Kind, Rules] = {
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

_SCRIPT: Rules = (("config", ("*",)), ("code", ("*",)), ("launch", ("*",)))
_THREADS = ("threads*", "variable.OMP_*", "variable.MKL_*")
# For each pattern, the changes that can cause it. Other changes do not explain a difference with that pattern.
_LEAVE: dict[Traces, Rules] = {
    "computation": _EXPLAINS["arithmetic"],
    "data": _EXPLAINS["batch"],
    "draws": _EXPLAINS["generator"],
    "update": (
        ("config", _UPDATE),
        *_SCRIPT,
        ("environment", (*_LIBRARIES, "distribution.deepspeed", "deepspeed*", "cpu.capability", "gpu.model")),
    ),
    "lone tensor": _SCRIPT,
    "record": _SCRIPT,
    "threads": (("determinism", _THREADS), ("environment", _THREADS), *_SCRIPT),
    "resume": (*_SCRIPT, ("data", ("*",)), ("tokenizer", ("*",)), ("determinism", ("*",))),
    # The store itself is the evidence: no recorded change causes it.
    "store": (),
}


def kind(first: Divergence) -> Kind:
    """Return the kind of the quantity that differed first."""
    name = first.quantity.lower()
    if is_result(first.quantity):
        return "result"
    if first.step == 0:
        return "initial state"
    if name.startswith("generator "):
        return "generator"
    if is_state(first.quantity):
        return "arithmetic"
    if name == "batch":
        return "batch"
    rate = re.search(r"(^|[^a-z])(lr|learning[ _.-]?rate)([^a-z]|$)", name)
    return "learning rate" if rate else "arithmetic"


def rank_changes(
    first: Divergence, changes: Sequence[Change], of: Kind | None = None, traces: Traces | None = None
) -> tuple[list[Change], list[Change]]:
    """Return the changes that can alter bits, in two lists: those that explain `first`, the best first, and the others.

    `of` is the kind of `first`, if more is known than its name shows. `traces` is the pattern of an explanation.
    """
    tables = [*([_LEAVE[traces]] if traces is not None else []), _EXPLAINS[of or kind(first)]]
    able = [change for change in changes if change.rating != "cannot"]
    places = {id(change): [_place(rules, change) for rules in tables] for change in able}
    explain = {id(change) for change in able if None not in places[id(change)]}
    # Of equal explanations, a change that does alter bits comes before one that may.
    fitting = [change for change in able if id(change) in explain]
    fitting.sort(key=lambda change: (places[id(change)], change.rating != "does"))
    others = sorted(
        (change for change in able if id(change) not in explain), key=lambda change: change.rating != "does"
    )
    return fitting, others


def _place(rules: Rules, change: Change) -> int | None:
    """Return the number of the first rule that matches the change, None if none does."""
    # An argument of the script is a setting, as a config key is.
    known = "config" if change.part == "argument" else change.part
    name = change.name.lower() if known == "config" else change.name
    for place, (part, patterns) in enumerate(rules):
        if part == known and any(fnmatchcase(name, pattern) for pattern in patterns):
            return place
    return None
