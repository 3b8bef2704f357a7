"""The reason of a divergence in words: the recorded changes that explain the quantity that differed first.

The first sentence names the cause, and no other sentence contradicts it. If several changes fit, all are named. If no
recorded input differs, the cause is unknown.
"""

from collections.abc import Sequence

from m5ws.environment.drift import title
from m5ws.records.verdict import Change, Divergence, is_result, is_state
from m5ws.reproduce.verdict.difference_kinds import Kind, kind, rank_changes
from m5ws.reproduce.verdict.hints import MARK, Hint

_LISTED = 8
_UNKNOWN = "unknown"
_LIKELY = ". Likely cause: "
_WORLD = {("launch", "nproc"), ("environment", "world")}


def reason(
    first: Divergence | None, changes: Sequence[Change], hint: Hint | None = None, of: Kind | None = None
) -> str | None:
    """Return the most plausible cause of a divergence in words, None if nothing diverged.

    The first sentence names the recorded changes that explain `first`, which is of kind `of`. The `hint` is used
    only if no change explains it.
    """
    if first is None:
        return None
    fitting, others = rank_changes(first, changes, of, hint.traces if hint is not None else None)
    where = f"The first difference is {place_of(first)}"
    if fitting:
        return _recorded(fitting, others, where)
    if hint is not None and hint.strong:
        rest = f". Recorded changes that do not explain the difference: {_list(others)}" if others else ""
        return f"{hint}. {where}{rest}"
    if not others:
        return _unknown(first, changes, hint)
    able = f"Recorded changes that can alter bits: {_list(others)}"
    if hint is None:
        return f"no recorded change explains the first difference, {place_of(first)}. {able}"
    return f"likely {hint}. {where}. No recorded change explains the difference. {able}"


def _recorded(fitting: Sequence[Change], others: Sequence[Change], where: str) -> str:
    """Return text on the recorded changes that explain a first difference, and on its place."""
    if len(fitting) > 1:
        cause = f"{len(fitting)} recorded changes fit, the most likely first: {_list(fitting)}"
    elif others:
        cause = f"most likely {_one(fitting[0])}"
    else:
        cause = f"{_one(fitting[0])} is the only recorded change that can alter bits"
    rest = f". Less likely causes: {_list(others)}" if others else ""
    return f"{cause}. {where}{rest}"


def _unknown(first: Divergence, changes: Sequence[Change], hint: Hint | None) -> str:
    # Imports in processes that ranks start by `spawn` or `exec` are not recorded.
    unseen = [change for change in changes if (change.detail or "").endswith("imported it")]
    unless = f", unless a process that a rank started imported it: {_list(unseen)}" if unseen else ""
    harmless = f" that can alter bits ({len(changes)} that cannot{unless})" if changes else ""
    where = f"The first difference is {place_of(first)}"
    return f"{_UNKNOWN}: no recorded input differs{harmless}. {where}{_LIKELY}{hint or likely_cause(first)}"


def is_unknown(text: str | None) -> bool:
    """Return True if a reason is that no recorded change explains a divergence."""
    return (text or "").startswith(_UNKNOWN)


def known_facts(text: str | None, first: Divergence) -> str:
    """Return the known facts of a divergence of unknown cause, without the guess of a single replay."""
    rest = (text or "").removeprefix(f"{_UNKNOWN}: ").removesuffix(f"{_LIKELY}{likely_cause(first)}")
    return rest[:1].upper() + rest[1:]


def is_hint(text: str | None) -> bool:
    """Return True if a reason is a strong hint about the original, and not a recorded change."""
    return (text or "").startswith(MARK)


def likely_cause(first: Divergence) -> str:
    """Return the likely cause of a first difference that no recorded change explains."""
    causes = {
        "learning rate": "a schedule that depends on time or on state that was not restored",
        "batch": "a loader without a seeded order, or one that reads data outside the snapshot",
        "initial state": "weights drawn without the run's seed, or read from outside the snapshot",
        "generator": "random numbers drawn in another order, for example by loader workers or threads",
        "result": "random numbers without a seed, or input from outside the snapshot",
        "arithmetic": "a nondeterministic operation, or an input that is not recorded",
    }
    return causes[kind(first)]


def place_of(first: Divergence) -> str:
    """Return the place of a first difference in words."""
    if is_state(first.quantity):
        gap = (
            f" (equal after step {first.equal_after}, not recorded in between)" if first.equal_after is not None else ""
        )
        return f"{first.quantity} {f'after step {first.step}' if first.step else 'before the first step'}{gap}"
    if is_result(first.quantity):
        return first.quantity
    return f"{first.quantity} at step {first.step} on rank {first.rank}"


def _list(changes: Sequence[Change]) -> str:
    shown = [f"({number}) {_one(change)}" for number, change in enumerate(changes[:_LISTED], 1)]
    more = f"; and {len(changes) - _LISTED} more" if len(changes) > _LISTED else ""
    return "; ".join(shown) + more


def _one(change: Change) -> str:
    """Return a change in words. A changed file is named without its digests."""
    if change.part in ("code", "tokenizer") and change.name not in {"probe ids", "commit"}:
        done = "added" if change.old is None else "removed" if change.new is None else "changed"
        return f"{change.part} {change.name} was {done}"
    if (change.part, change.name) in _WORLD:
        return f"{title(change)} (reduction order, world size)"
    if change.part == "data" and change.detail:
        return f"data {change.name} ({change.detail.splitlines()[0]})"
    return title(change)
