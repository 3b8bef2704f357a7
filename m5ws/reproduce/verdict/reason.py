"""Why two runs differ, in words: the recorded changes that explain the quantity that differed first.

The first sentence names the cause, and no other contradicts it. Several changes that fit are several, and where no
recorded input differs the cause is unknown.
"""

from collections.abc import Sequence

from m5ws.environment.drift import title
from m5ws.records.verdict import Change, Divergence
from m5ws.reproduce.verdict.difference_kinds import Kind, is_state, kind, ranked
from m5ws.reproduce.verdict.hints import MARK, Sign

_LISTED = 8
_UNKNOWN = "unknown"
_WORLD = {("launch", "nproc"), ("environment", "world")}


def reason(
    first: Divergence | None, changes: Sequence[Change], sign: Sign | None = None, of: Kind | None = None
) -> str | None:
    """Return the most plausible cause of a divergence in words, None where nothing diverged.

    Its first sentence names the recorded changes that explain `first`, which is of kind `of`. A `sign` is given only
    if none does, so that no sentence contradicts another.
    """
    if first is None:
        return None
    fitting, others = ranked(first, changes, of, sign.traces if sign is not None else None)
    where = f"The first difference is {named(first)}"
    if fitting:
        return _recorded(fitting, others, where)
    if sign is not None and sign.strong:
        rest = f". Recorded changes that do not explain it: {_list(others)}" if others else ""
        return f"{sign}. {where}{rest}"
    if not others:
        return _unknown(first, changes, sign)
    able = f"those that can change bits: {_list(others)}"
    if sign is None:
        return f"no recorded change explains the first difference, {named(first)}; {able}"
    return f"by what differs and what does not, it points to {sign}. {where}. No recorded change explains it; {able}"


def _recorded(fitting: Sequence[Change], others: Sequence[Change], where: str) -> str:
    """Return the recorded changes that explain a first difference, and where that is."""
    if len(fitting) > 1:
        cause = f"{len(fitting)} recorded changes fit, most consistent first: {_list(fitting)}"
    elif others:
        cause = f"most plausibly {_one(fitting[0])}"
    else:
        cause = f"{_one(fitting[0])} is the only recorded change that can alter bits"
    rest = f". Less consistent with it: {_list(others)}" if others else ""
    return f"{cause}. {where}{rest}"


def _unknown(first: Divergence, changes: Sequence[Change], sign: Sign | None) -> str:
    # Imports of processes that ranks start by `spawn` or `exec` are not recorded.
    unseen = [change for change in changes if (change.detail or "").endswith("imported it")]
    unless = f", unless a process that a rank started imported it: {_list(unseen)}" if unseen else ""
    harmless = f" that can change bits ({len(changes)} that cannot{unless})" if changes else ""
    where = f"the first difference is {named(first)}"
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
    if is_state(first):
        return f"{first.quantity} {f'after step {first.step}' if first.step else 'before the first step'}"
    if first.quantity.startswith("file "):
        return first.quantity
    return f"{first.quantity} at step {first.step} on rank {first.rank}"


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
