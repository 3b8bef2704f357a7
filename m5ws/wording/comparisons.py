"""Words of comparisons: differences, gaps, items and second replays."""

from m5ws.records.failure import EndReason
from m5ws.records.reasons import Ended, Gap, GapKind, ResultsHint
from m5ws.records.verdict import ComparedItem, Divergence, Recheck
from m5ws.wording.failures import describe_end

GAPS: dict[GapKind, str] = {
    "missing steps": "{ranks}: steps {steps} of the original were not replayed",
    "no end": "the end of the original is not recorded",
    "observation failed": "an error ended the observation of the script after step {step} (`m5ws show`)",
    "attempt without place": "the steps of attempt {number} are not compared: no record proves after which step it "
    "continued. State it in the script, before its first step: `m5ws.resumed_at(step)`",
    "script end unknown": "the end of the script is not recorded: it left Python by os._exit, or its machine was lost",
    "weights of one side": "at the end of the script, one side or none has a record of {name}",
    "more weights of one side": "at the end of the script, one side or none has a record of {number} other weights",
    "other failure": "the original ended with {original}, and the replay with {replayed}",
    "generators not restored": "generators ({name}) of {ranks} differ after steps {steps}: the resume may not restore "
    "them, so draws that nothing records may differ",
    "lost steps": "{ranks}: steps {steps} of the original are not in its record, and a checkpoint after them exists. "
    "Their attempt lost its machine before it delivered them, or a later attempt started from the beginning",
    "states of the original": "{ranks}: the replay did not record the state after steps {steps}",
    "checkpoints of the original": "the replay made no checkpoints of steps {steps}",
    "steps before the segment": "steps up to {step}: given by checkpoint {name} ({digest})",
    "steps before the fork": "steps up to {step}: given by checkpoint {name} ({digest}), as for the original",
    "no steps": "steps and state: no step was recorded or observed; only files and metrics could be compared",
    "none recorded": "{name}: none were recorded",
    "states between": "state after {number} of {steps} steps: no fingerprints were recorded there",
    "original ended": "the end of the original, after step {step}: {name}",
    "no weights alive": "weights at the end of the script: none were alive, so only output files can show them",
    "files not kept": "output files of the {side}: {name}",
    "nothing run": "everything: nothing was run",
    "nothing resumed": "everything: nothing was resumed",
    "files outside": "files that were read, and that no snapshot contains ({number}): {name}",
    "hosts": "content from hosts ({number}): {name}",
}
_PURPOSES = {
    "pair": "To compare files with other names in the replay",
    "narrow": "To judge less than all files and metrics",
}


def describe_gap(gap: Gap) -> str:
    """Return the words of a gap."""
    fields = {name: getattr(gap, name) for name in gap.__struct_fields__}
    ends = {name: describe_end(end) for name, end in fields.items() if isinstance(end, EndReason)}
    return GAPS[gap.kind].format(**(fields | ends | {"digest": (gap.digest or "")[:12]}))


def label(divergence: Divergence) -> str:
    """Return the quantity of a difference with its kind."""
    if divergence.kind in ("value", "steps", "checkpoint"):
        return divergence.quantity
    return f"{divergence.kind} {divergence.quantity}{f': {divergence.place}' if divergence.place else ''}"


def locate(first: Divergence) -> str:
    """Return the place of a first difference."""
    if first.is_state:
        gap = f" (equal after step {first.equal_after}, not recorded in between)"
        when = f"after step {first.step}" if first.step else "before the first step"
        return f"{label(first)} {when}{gap if first.equal_after is not None else ''}"
    return label(first) if first.is_result else f"{label(first)} at step {first.step} on rank {first.rank}"


def describe_ended(ended: Ended) -> str:
    """Return the outcome of an attempt with its reason."""
    return f"{ended.outcome}{f': {describe_end(ended.reason)}' if ended.reason is not None else ''}"


def describe_item(item: ComparedItem) -> str:
    """Return an item with the place of its difference, or the reason why it was not compared."""
    name = f"{item.kind} {item.name}" + (f" (in the replay {item.replayed_as})" if item.replayed_as else "")
    if item.status == "not compared":
        return f"{name}: {describe_item_reason(item)}"
    if item.status == "equal":
        return name
    at = f": {item.place}" if item.place else ""
    sides = (item.original, item.replayed)
    # A file of an unknown format is judged by its bytes, and has no place with values.
    values = "bytes" if sides == (None, None) else " → ".join("absent" if s is None else s or '""' for s in sides)
    return f"{name}{at} {values}"


def describe_item_reason(item: ComparedItem) -> str:
    """Return the reason why an item was not compared."""
    if item.reason == "bytes differ":
        return f"its bytes differ, and it cannot be read as tensors: {item.problem}"
    if item.kind == "result" and item.reason == "unreadable":
        return f"{item.problem}"
    return f"{item.reason}"


def describe_problem(recheck: Recheck) -> str:
    """Return the reason why a second replay has no result."""
    if recheck.ended is not None:
        return f"it {describe_ended(recheck.ended)}"
    return recheck.problem or "it did not record the quantity that differs"


def describe_hint(hint: ResultsHint) -> str:
    """Return the line for m5ws.toml."""
    quoted = ", ".join(f'"{pattern}"' for pattern in hint.patterns)
    return f"{_PURPOSES[hint.purpose]}: [run] results = [{quoted}]"
