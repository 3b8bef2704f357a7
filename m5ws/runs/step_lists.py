"""Lists of steps as text for people, and the steps that a rank lacks."""

from collections.abc import Iterable, Mapping

from m5ws.runs.numbers import Numbers


def absent_in(steps: Mapping[int, object], wanted: Iterable[int]) -> Numbers:
    """Return the steps of `wanted` that are not in `steps`."""
    return Numbers(step for step in wanted if step not in steps)


def join_ranks(by_rank: Mapping[int, Numbers]) -> list[tuple[str, str]]:
    """Return ranks and their steps as text. Ranks with the same steps are joined, and ranks without steps left out."""
    ranks: dict[str, list[int]] = {}
    for rank, steps in sorted(by_rank.items()):
        if steps:
            ranks.setdefault(describe_ranges(steps), []).append(rank)
    return [(f"rank{'s' * (len(those) > 1)} {describe_ranges(those)}", steps) for steps, those in ranks.items()]


def describe_ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers as text, with consecutive numbers joined: 1-4, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[1]}" for part in parts)
