"""The ranks for which the rest waits, by the numbers of their last collectives. Pure: no I/O.

All ranks of a group enter its collectives in one order, and torch's flight recorder numbers them.
"""

from collections.abc import Collection, Sequence

from m5ws.records.stacks import Collective, RankStack
from m5ws.wording.lists import list_names


def find_behind(stacks: Sequence[RankStack], elsewhere: Collection[int] = ()) -> tuple[tuple[int, ...], str]:
    """Return ranks that never entered a collective in which as many others wait, and a sentence about the collective.

    They wait in no collective: `elsewhere` has the ranks that wait in a collective without a record.
    """
    waits = [each for each in map(_find_wait, stacks) if each is not None]
    left_out = dict[int, Collective]()
    for stack in stacks:
        if stack.rank not in elsewhere and _find_wait(stack) is None:
            pairs = ((last, wait) for last in stack.collectives for wait in waits)
            before = [wait for last, wait in pairs if last.group == wait.group and last.number < wait.number]
            left_out |= {stack.rank: before[0]} if before else {}
    if not 0 < len(left_out) <= len(waits):
        return (), ""
    wait = min(left_out.values(), key=lambda each: each.number)
    about = f"others wait in {wait.name} {wait.number:,}, which {_ranks(left_out)} never entered"
    return tuple(sorted(left_out)), about


def find_mismatched(stacks: Sequence[RankStack]) -> tuple[tuple[int, ...], str]:
    """Return the ranks in another collective than most at one number of a group, and a sentence about all of them.

    A tie has no ranks, and a sentence.
    """
    places = dict[tuple[str, int], dict[str, list[int]]]()
    for stack in stacks:
        if (wait := _find_wait(stack)) is not None:
            places.setdefault((wait.group, wait.number), {}).setdefault(wait.name, []).append(stack.rank)
    undecided = ""
    for (_, number), names in places.items():
        if len(names) > 1:
            groups = sorted(names.values(), key=len)
            is_tie = len(groups[0]) == len(groups[1]) or 2 * len(groups[0]) >= sum(map(len, groups))
            entered = (f"{_ranks(ranks)} entered {name}" for name, ranks in names.items())
            sentence = f"as collective {number:,}, {' and '.join(entered)}"
            if not is_tie:
                return tuple(groups[0]), sentence
            undecided = undecided or sentence
    return (), undecided


def _find_wait(stack: RankStack) -> Collective | None:
    return next((each for each in stack.collectives if each.state != "completed"), None)


def _ranks(ranks: Collection[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {list_names([str(rank) for rank in sorted(ranks)])}"
