"""The ranks for which the rest of an attempt waits, by a vote of their stacks. Pure: no I/O.

Seven rules are tried in order, and the first that names ranks decides:

1. *exit*: their script has ended and their process has not, and no other rank is late.
2. *process*: their process is stopped, ended or gone. If their script has ended, a rank waits in a collective.
3. *number*: they never entered a collective in which at least as many ranks wait, by torch's flight recorder.
4. *mismatch*: they entered another collective than most at one number, by the same record.
5. *collective*: they wait in no collective, and at least as many ranks do.
6. *steps*: they have completed fewer steps than another rank, and their stacks are unknown.
7. *place*: they are the smallest group at one line of the script, less than half of the ranks, and no stack is missing.

Without an answer the ranks are unknown: a tie is never decided. A rank that is alone is named.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from m5ws import secret_scan
from m5ws.records.stacks import Frame, RankStack
from m5ws.supervision import last_collectives
from m5ws.supervision.progress import EXIT
from m5ws.supervision.slow_ranks import Phase
from m5ws.wording import lists

ENDED = ("Z", "X", "gone")
"""States of a process that has ended (`processes.read_state`)."""
_STATES = {"T": "is stopped", "Z": "has ended", "X": "has ended", "gone": "is gone"}
_COLLECTIVES = ("/torch/distributed/", "/deepspeed/comm/")
_BACKWARD = "_engine_run_backward"
"""The frame of torch in which a backward pass runs, and in which hooks of DDP and FSDP wait for collectives."""
_DATA = "/torch/utils/data/"
_WRAPPERS = ("wrapper", "wait", "_wait_tensor")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3.", "<", f"{Path(secret_scan.__file__).parent}/")


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """The `ranks` for which the rest waits, and the rule that named them. No ranks: they are unknown.

    `about`: a sentence about the collectives at which the ranks are, if they are recorded.
    """

    ranks: tuple[int, ...] = ()
    rule: Literal["exit", "process", "number", "mismatch", "collective", "steps", "place"] | None = None
    about: str = ""


def vote(stacks: Sequence[RankStack], world: int) -> Vote:
    """Return the ranks for which the rest waits. `world` is the number of ranks, of which some may have no stack."""
    late = [each for each in stacks if each.is_late]
    if late and all(each.phase == EXIT for each in late):
        return Vote(ranks=_numbers(late), rule="exit")
    waiting = [each for each in stacks if find_collective(each.frames) is not None]
    dead = (each for each in stacks if each.state in ("T", *ENDED))
    if named := _numbers(each for each in dead if waiting or each.phase != EXIT):
        return Vote(ranks=named, rule="process")
    # A backward pass waits in a collective, or computes: the record decides.
    elsewhere = _numbers(each for each in waiting if each.frames[0].function != _BACKWARD)
    behind, about = last_collectives.find_behind(stacks, elsewhere)
    if behind:
        return Vote(ranks=behind, rule="number", about=about)
    mismatched, about = last_collectives.find_mismatched(stacks)
    if mismatched:
        return Vote(ranks=mismatched, rule="mismatch", about=about)
    others = [each for each in stacks if each.frames and find_collective(each.frames) is None]
    if 0 < len(others) <= len(waiting):
        return Vote(ranks=_numbers(others), rule="collective")
    last = max((each.step for each in stacks), default=0)
    behind = _numbers(each for each in stacks if each.step < last)
    if behind and not any(each.frames for each in stacks if each.rank in behind):
        return Vote(ranks=behind, rule="steps")
    if len(stacks) < world:
        return Vote(about=about)
    if world == 1:
        return Vote(ranks=_numbers(stacks), rule="place")
    groups = sorted(map(_numbers, _group(each for each in stacks if each.frames)), key=len)
    if len(groups) > 1 and len(groups[0]) < len(groups[1]) and 2 * len(groups[0]) < len(stacks):
        return Vote(ranks=groups[0], rule="place")
    return Vote(about=about)


def find_script_frame(stack: RankStack) -> Frame | None:
    """Return the innermost frame of the script: of no library, and not of m5ws."""
    return next((frame for frame in stack.frames if not _is_library(frame)), None)


def find_phase(frames: Sequence[Frame]) -> Phase:
    """Return the part of a step in which a rank is. A backward pass counts as a collective: its hooks wait in it."""
    if find_collective(frames) is not None:
        return "collective"
    return "data" if any(_DATA in frame.file for frame in frames) else "compute"


def find_collective(frames: Sequence[Frame]) -> str | None:
    """Return the name of the collective in which a rank waits; None if its script is somewhere else.

    Only frames inside the innermost frame of the script count: a wrapper of torch calls the script itself.
    """
    inner = list(itertools.takewhile(_is_library, frames))
    if inner and inner[0].function == _BACKWARD:
        return "backward"
    distributed = [frame for frame in inner if any(part in frame.file for part in _COLLECTIVES)]
    named = (frame.function for frame in distributed if frame.function not in _WRAPPERS)
    return next(named, "a collective") if distributed else None


def describe_place(stack: RankStack) -> str | None:
    """Return the line of the script at which a rank is, as FILE:LINE."""
    frame = find_script_frame(stack)
    return None if frame is None else f"{frame.file}:{frame.line}"


def describe(stack: RankStack) -> str:
    """Return the place of a rank, and the state of its process if it does not run."""
    state = _STATES.get(stack.state or "")
    if stack.state in ENDED:
        return f"process {stack.pid} {state}"
    process = f"process {stack.pid} {state}, " if state is not None else ""
    if not stack.frames:
        return f"{process}no stack: {stack.problem or 'unknown'}"
    collective, frame = find_collective(stack.frames), find_script_frame(stack)
    words = [f"waiting in {collective}"] if collective is not None else []
    if collective is None and frame is not stack.frames[0]:
        words = [f"in {stack.frames[0].function}"]
    if frame is not None:
        words.append(f"at {describe_place(stack)} in {frame.function}")
    return process + " ".join(words)


def describe_all(stacks: Sequence[RankStack], found: Vote) -> str:
    """Return one sentence: the ranks for which the rest waits, and the places of all ranks."""
    named = [each for each in stacks if each.rank in found.ranks]
    late = max(stacks, key=lambda each: each.waited_s)
    head = f"no progress for {late.waited_s:.0f} s after step {late.step} (phase {late.phase})"
    if not named:
        unknown = f"{head} because of an unknown rank: {_describe_groups(stacks)}"
        return "; ".join(filter(None, (unknown, found.about)))
    others = [each for each in stacks if each.rank not in found.ranks]
    return "; ".join(filter(None, (f"{head}: {_describe_groups(named)}", _describe_groups(others), found.about)))


def _describe_groups(stacks: Iterable[RankStack]) -> str:
    texts: dict[str, list[RankStack]] = {}
    for each in stacks:
        texts.setdefault(describe(each), []).append(each)
    return "; ".join(f"{_describe_ranks(group)}, {text}" for text, group in texts.items())


def _describe_ranks(group: Sequence[RankStack]) -> str:
    if len(group) == 1:
        return f"rank {group[0].rank} on {group[0].host}"
    return f"ranks {lists.list_names([str(each.rank) for each in group])}"


def _group(stacks: Iterable[RankStack]) -> list[list[RankStack]]:
    """Return groups of ranks at the same place."""
    groups: dict[tuple[str | None, str | None], list[RankStack]] = {}
    for each in stacks:
        groups.setdefault((describe_place(each), find_collective(each.frames)), []).append(each)
    return list(groups.values())


def _numbers(stacks: Iterable[RankStack]) -> tuple[int, ...]:
    return tuple(sorted(each.rank for each in stacks))


def _is_library(frame: Frame) -> bool:
    return frame.file.startswith("<") or any(part in frame.file for part in _LIBRARIES)
