"""The first sentence of a verdict without a difference: all that is equal, and the number of unequal other items."""

from collections import Counter
from collections.abc import Iterator

from m5ws.outputs import collect
from m5ws.records.verdict import ComparedItem
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs.output_files import OutputReport
from m5ws.runs import recorded_steps

NO_COMMON = "no output file with tensors and no named result was compared, and no file or metric has the same name"
_NAMED = 3


def describe(comparison: Comparison, report: OutputReport) -> str:
    """Return the sentence: the equal quantities that decide, and the other items that differ or were not compared."""
    parts = [*_describe_state(comparison), *_describe_evidence(report)]
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    is_one = len(parts) == 1 and parts[0].startswith("1 ")
    words = f"{listed} {'is' if is_one else 'are'}" if listed else "all that was compared is"
    return f"{words} equal in every bit{describe_others(report)}"


def describe_others(report: OutputReport) -> str:
    """Return the numbers and names of items that differ or were not compared, and do not decide, after a semicolon."""
    differ = [item for item in report.items if item.status == "differs" and not item.judged]
    absent = [item for item in report.items if item.status == "not compared" and not item.judged]
    parts = [*_count(differ, "differs", "differ", "other "), *_count(absent, "was not compared", "were not compared")]
    return "".join(f"; {part}" for part in parts)


def count_listed(report: OutputReport) -> Counter[str]:
    """Return the number of equal items by kind that are not counted as evidence."""
    return Counter(f"{item.kind}s" for item in report.items if item.status == "equal") - Counter(report.evidence)


def _describe_state(comparison: Comparison) -> Iterator[str]:
    """Yield the recorded state and steps."""
    if not comparison.original.by_steps:
        return
    lasts = ((states, recorded_steps.last(states)) for states in comparison.original.states.values())
    tensors = {name for states, last in lasts if last in states for name in states[last].tensors}
    if tensors:
        yield "weights"
    if any(name.startswith("optim") for name in tensors):
        yield "optimizer"
    if steps := comparison.equal["steps"] // max(len(comparison.original.steps), 1):
        yield _number(steps, "step")


def _describe_evidence(report: OutputReport) -> Iterator[str]:
    """Yield the delivered results that decide."""
    words = {"tensor files": "file with tensors", "results": "named result", "files": "file", "metrics": "metric"}
    for kind, word in words.items():
        if count := report.evidence.get(kind):
            yield _number(count, word)


def _count(items: list[ComparedItem], one: str, many: str, other: str = "") -> Iterator[str]:
    for kind in dict.fromkeys(item.kind for item in items):
        names = [item.name for item in items if item.kind == kind]
        verb = one if len(names) == 1 else many
        yield f"{_number(len(names), f'{other}{kind}')} {verb}: {collect.listed(names, most=_NAMED)}"


def _number(count: int, word: str) -> str:
    plural = word.replace(" with", "s with") if " with" in word else f"{word}s"
    return f"{count:,} {word if count == 1 else plural}"
