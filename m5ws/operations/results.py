"""What a script leaves behind that uses no session: files, and metrics that it logged itself, compared at its end."""

from m5ws.comparisons import Divergence
from m5ws.operations.compare import Comparison
from m5ws.ports import Tracker
from m5ws.records import Content, Digest
from m5ws.repository import Repository, trees


def first_difference(
    repo: Repository, tracker: Tracker | None, comparison: Comparison, before: str, after: str
) -> Divergence | None:
    """Return the first file or metric that differs from run `before` to `after`, and count in those that are equal."""
    # A checkpoint of files is all there is, and what differs in it can be named.
    return _file(repo, comparison) or comparison.first() or _metric(tracker, comparison, before, after)


def _file(repo: Repository, comparison: Comparison) -> Divergence | None:
    for step, content in comparison.original.contents.items():
        before, after = _files(repo, content), _files(repo, comparison.replay.contents.get(step))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                return Divergence(
                    step=step, rank=0, quantity=f"file {name}", original=before.get(name), replayed=after.get(name)
                )
            comparison.equal["files"] += 1
    return None


def _files(repo: Repository, content: Digest | None) -> dict[str, Digest]:
    tree = repo.objects.get_record(content, Content).tree if content else None
    return {entry.name: entry.digest for entry in trees.load(repo.objects, tree).entries} if tree else {}


def _metric(tracker: Tracker | None, comparison: Comparison, before: str, after: str) -> Divergence | None:
    if tracker is None:
        return None
    one, two = tracker.script_metrics(before), tracker.script_metrics(after)
    found = []
    for name in sorted(one.keys() | two.keys()):
        old, new = _by_step(one.get(name, [])), _by_step(two.get(name, []))
        for step in sorted(old.keys() | new.keys()):
            if old.get(step) != new.get(step):
                found.append((step, name, old.get(step), new.get(step)))
            else:
                comparison.equal["metrics"] += 1
    if not found:
        return None
    step, name, first_old, first_new = min(found, key=lambda row: row[:2])
    return Divergence(step=step, rank=0, quantity=f"metric {name}", original=first_old, replayed=first_new)


def _by_step(points: list[tuple[int, str]]) -> dict[int, str]:
    """Return all of a metric's values at each step as one text: without a step, every value is at step 0."""
    found: dict[int, list[str]] = {}
    for step, value in points:
        found.setdefault(step, []).append(value)
    return {step: " ".join(sorted(values)) for step, values in found.items()}
