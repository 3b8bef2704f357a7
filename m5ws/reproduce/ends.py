"""Weights at the ends of two scripts without a session, with equal labels for equal modules.

An attempt that a script continued has no record of modules that only earlier attempts called, such as those of folds
that were done. So its labels may be those of other modules (`model` for the second fold). Rule: if the runs have other
labels, a module is compared with one that is equal to it bit for bit, if there is one, and otherwise with that of its
label. With the same labels on both sides, no training was left out, and each module is compared with that of its label.
"""

from collections import defaultdict
from collections.abc import Mapping

UNPAIRED = "'"
"""End of the label of a module of the replay whose own label another module got."""


def align(original: Mapping[str, str], replay: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprints of the replay's weights by name, each with the label of an equal module of the original.

    A module that is equal to none keeps its label, if no other module got it. Otherwise `UNPAIRED` is added to it,
    which no recorded label has.
    """
    wanted, labels = _modules(original), _modules(replay)
    if wanted.keys() == labels.keys():
        return dict(replay)
    free: dict[frozenset[tuple[str, str]], list[str]] = defaultdict(list)
    for label, module in wanted.items():
        free[module].append(label)
    found: dict[str, str] = {}
    # Modules that have their label already come first: several may be equal.
    for label in sorted(labels, key=lambda label: (wanted.get(label) != labels[label], label)):
        if same := free[labels[label]]:
            found[label] = label if label in same else same[0]
            same.remove(found[label])
    others = {label: f"{label}{UNPAIRED}" for label in found.values()}
    return {
        f"{found.get(label) or others.get(label, label)}.{name}": value
        for label, module in labels.items()
        for name, value in module
    }


def _modules(weights: Mapping[str, str]) -> dict[str, frozenset[tuple[str, str]]]:
    """Return the names and fingerprints of each module's tensors, by the module's label."""
    modules: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, value in weights.items():
        label, _, name = path.partition(".")
        modules[label].add((name, value))
    return {label: frozenset(module) for label, module in modules.items()}
