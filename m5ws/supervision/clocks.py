"""Clocks of nodes against each other, from steps that their ranks have in common.

A step with a collective ends on all ranks at nearly the same moment, so the difference of its recorded times is the
difference of clocks.
"""

from collections.abc import Mapping
from statistics import median

Steps = Mapping[int, Mapping[int, float]]
"""Times of completed steps in seconds, by rank and by step."""
_STEPS = 20


def offsets_s(steps: Steps, nodes: Mapping[int, int]) -> dict[int, float]:
    """Return the seconds that the clock of each node is ahead of the clock of the first rank's node.

    `nodes` has the node of each rank. A node without a step in common has no offset: it is unknown.
    """
    if not steps:
        return {}
    first = steps[min(steps)]
    differences: dict[int, list[float]] = {}
    for rank, times in steps.items():
        shared = sorted(first.keys() & times.keys())[-_STEPS:]
        differences.setdefault(nodes[rank], []).extend(times[step] - first[step] for step in shared)
    return {node: median(values) for node, values in differences.items() if values} | {nodes[min(steps)]: 0.0}
