"""The sentence of a verdict, from its reasons and its other fields."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from m5ws.records.certificate import Certificate, find_outcome
from m5ws.records.reasons import Differs, Ended, Equal, Fact, Interruption, JointReason, Reason, Unreadable
from m5ws.records.verdict import ComparedItem, Divergence, Recheck, Verdict
from m5ws.wording import changes
from m5ws.wording.comparisons import describe_ended, describe_gap, describe_item, describe_problem, locate
from m5ws.wording.lists import capitalise, count, list_names

_NAMED = 3
NOTHING_RECORDED = (
    "the run recorded nothing to compare: its script does not use m5ws.session, no optimizer of torch was observed in "
    "it, it logs no metrics, and it writes no files to a folder of [run] outputs"
)
_FACTS = {
    "records missing": "the replay lacks records that the original has",
    "state not compared": "the last recorded state was not compared, and equal losses alone prove little",
    "nothing in common": "no output file with tensors and no named result was compared, and no file or metric has the "
    "same name",
    "nothing recorded": NOTHING_RECORDED,
    "no recheck": "without a second replay it is unknown whether the run is deterministic",
}
_OUTCOMES = {
    "reproduced": "everything that was compared is equal, bit for bit",
    "sampled": "everything that was compared is equal, bit for bit, given the checkpoint that the segment starts from",
    "diverged": "the replay is not the same",
    "nondeterministic": "two replays of this run differ from each other",
    "not comparable": "this environment cannot give the same bits",
}
_EVIDENCE = {"tensor files": "file with tensors", "results": "named result", "files": "file", "metrics": "metric"}
_NOT_RESUMED = (
    "the script started from the beginning: nothing was resumed. Let it save checkpoints earlier, and continue from "
    "the newest checkpoint if there is a checkpoint"
)


def describe_verdict(verdict: Verdict) -> str:
    """Return all reasons of a verdict, or the meaning of its outcome if it has none."""
    words = [describe_reason(reason, verdict) for reason in verdict.reasons] or [_OUTCOMES[verdict.outcome]]
    return ". ".join([words[0], *map(capitalise, words[1:])])


def describe_reason(reason: Reason, verdict: Verdict) -> str:
    """Return a reason of a verdict in words."""
    match reason:
        case Differs():
            return _describe_difference(reason, verdict)
        case Equal():
            return _describe_equal(reason, verdict)
        case Ended():
            none = ", and recorded no step" if reason.side == "original" else ""
            return f"the {reason.side} {describe_ended(reason)}{none}"
        case Unreadable():
            return reason.problem
        case Interruption():
            return _describe_interruption(reason, verdict)
        case Fact():
            return _describe_fact(reason, verdict)
        case _:
            assert_never(reason)


def _describe_difference(reason: Differs, verdict: Verdict) -> str:
    where, resume = f"first difference is {_locate_first(verdict.first)}", reason.resume
    if resume is None:
        return f"{changes.explain(verdict.changes, reason.rewritten)}. The {where}"
    after = f"after step {resume.step}" if resume.step is not None else "from the output files of an earlier attempt"
    notices = "".join(f". {capitalise(message)}" for message in resume.notices)
    if not resume.is_cause:
        cause = changes.explain(verdict.changes, reason.rewritten)
        return f"{cause}. The {where}. The original was resumed {after}{notices}"
    able = changes.enumerate_able(verdict.changes)
    named = f". Recorded changes that can alter bits: {able}" if able else ""
    return f"the resume of the original {after}: the {where}{notices}{named}"


def _describe_equal(reason: Equal, verdict: Verdict) -> str:
    """Return the equal quantities that decide, the other items, and the doubt."""
    parts = ["weights"] * reason.weights + ["optimizer"] * reason.optimizer
    counts = [(reason.steps, "step"), *((reason.evidence.get(kind, 0), word) for kind, word in _EVIDENCE.items())]
    parts += [count(number, word) for number, word in counts if number]
    is_one = not parts[1:] and sum(number for number, _ in counts) == 1
    named = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    subject = f"{named} {'is' if is_one else 'are'}" if named else "all that was compared is"
    sentence = f"{subject} equal in every bit{describe_others(verdict.items)}"
    doubts = [capitalise(describe_gap(reason.doubt))] if reason.doubt is not None else []
    if verdict.unsure:
        doubts.append(f"Not compared: {list_names([*map(describe_item, verdict.unsure)], '; ', _NAMED)}")
    return ". ".join([sentence, *doubts])


def describe_others(items: Sequence[ComparedItem]) -> str:
    """Return the numbers and names of items that differ or were not compared, and do not decide, after a semicolon."""
    others = [item for item in items if not item.judged]
    differ = _count_items([item for item in others if item.status == "differs"], ("differs", "differ"), "other ")
    absent = [item for item in others if item.status == "not compared"]
    return "".join(f"; {part}" for part in (*differ, *_count_items(absent, ("was not compared", "were not compared"))))


def _count_items(items: Sequence[ComparedItem], verbs: tuple[str, str], other: str = "") -> Iterator[str]:
    for kind in dict.fromkeys(item.kind for item in items):
        names = [item.name for item in items if item.kind == kind]
        yield f"{count(len(names), f'{other}{kind}')} {verbs[len(names) > 1]}: {list_names(names, most=_NAMED)}"


def _describe_interruption(reason: Interruption, verdict: Verdict) -> str:
    at = f"interrupted after step {reason.after}"
    if reason.differs:
        return (
            f"the training differs before it is {at}, first in {_locate_first(verdict.first)}. It is not "
            "deterministic, so its resume cannot be judged"
        )
    if reason.missed:
        return f"the training was not {at}"
    if reason.resumed == 0:
        return f"{at}: {_NOT_RESUMED}"
    step = "a step that the records do not prove" if reason.resumed is None else f"step {reason.resumed}"
    first = f". The first difference is {locate(verdict.first)}" if verdict.first is not None else ""
    return f"{at} and resumed after {step}{first}"


def _describe_fact(reason: Fact, verdict: Verdict) -> str:
    if reason.kind == "recheck":
        return _describe_recheck(verdict)
    if reason.kind == "environment":
        grave = [changes.title(change) for change in verdict.changes if change.rating != "cannot"]
        return f"the environment differs: {list_names(grave, '; ', 5)}"
    if reason.kind == "reads":
        return f"files that the original read have changed: {changes.enumerate_able(verdict.changes)}"
    if reason.kind == "traces differ":
        place = verdict.explanation.place if verdict.explanation is not None else None
        where = f", first in {place.words}" if place is not None else ""
        return (
            f"two traced replays differ from each other{where}: the run is not deterministic, so the original cannot "
            "be judged"
        )
    others = describe_others(verdict.items) if reason.kind == "nothing in common" else ""
    return f"{_FACTS[reason.kind]}{others}"


def _describe_recheck(verdict: Verdict) -> str:
    """Return the result of a second replay, or of an uninterrupted replay after a resume that differs."""
    again = verdict.recheck or Recheck()
    if again.replay is None and again.start is not None:
        return _describe_uninterrupted(verdict, equal=again.start_equal)
    if again.repeats is None:
        return f"the second replay did not show whether the run is deterministic: {describe_problem(again)}"
    if again.start_equal:
        return (
            "inexact restore: two replays from the checkpoint agree with each other and differ from the original, but "
            f"a replay from the start equals the original up to {_last_step(verdict)}. The steps after the checkpoint "
            "depend on state that it does not contain. The original is not in doubt. `m5ws certify` tests restores"
        )
    if again.repeats:
        also = ", as does one from the start" if again.start_equal is False else ""
        return f"two replays agree with each other and differ from the original{also}"
    equal = ". The second replay equals the original up to there" if again.as_original else ""
    return (
        f"two replays differ from each other, first in {_locate_first(again.first)}: the run is not deterministic, so "
        f"the original cannot be judged{equal}"
    )


def _describe_uninterrupted(verdict: Verdict, *, equal: bool | None) -> str:
    if equal is None:
        return "an uninterrupted replay could not be compared"
    if not equal:
        return "an uninterrupted replay differs too"
    if verdict.first is not None and verdict.first.is_result:
        return "inexact resume: no recorded step differs, so no step depends on the difference"
    return (
        "inexact resume: an uninterrupted replay equals the original. The script does not restore all that its next "
        "steps depend on"
    )


def _locate_first(first: Divergence | None) -> str:
    return locate(first) if first is not None else "an unknown place"


def _last_step(verdict: Verdict) -> str:
    return f"step {verdict.first.step}" if verdict.first is not None else "its end"


def describe_joint(reason: JointReason) -> str:
    """Return the reason of a joint outcome."""
    steps = ", ".join(str(segment) for segment in sorted(reason.equal, key=lambda part: (part.first, part.last)))
    match reason.kind:
        case "one verdict":
            return f"{reason.segment or 'the whole run'}: see the verdict on replay {reason.replay}"
        case "whole run":
            return "the replay of the whole run is equal in everything that was compared, bit for bit"
        case "all segments":
            return f"all {reason.of} segments are equal, and each ends with the checkpoint of the next"
        case "some segments":
            of = f" of {reason.last} steps" if reason.last is not None else ""
            return f"equal, given the checkpoints they start from: {steps}{of}{_describe_sample(reason)}"
        case "no verdict":
            return "nothing was compared"


def _describe_sample(reason: JointReason) -> str:
    """Return the probability that a sample of segments would have shown a fault."""
    if not reason.drawn or not reason.of:
        return ""
    single, several = f"{reason.drawn / reason.of:.0%}", f"{reason.chance:.0%}"
    return (
        f". These are {reason.drawn} of {reason.of} segments. The sample would have shown a fault in one segment with "
        f"a probability of {single}, and faults in {reason.faults} segments with {several}"
    )


def describe_certificate(certificate: Certificate) -> str:
    """Return the joint result of restores."""
    tested, all_of = certificate.tested, len(certificate.verdicts)
    if bad := [verdict for verdict in tested if find_outcome(verdict) != "certified"]:
        first = describe_verdict(bad[0])
        many = f"{len(bad)} of {len(tested)} restores do not equal uninterrupted training. The first: {first}"
        return many if len(tested) > 1 else first
    bits = "all that was recorded" if certificate.interrupted else "all"
    equal = f"{bits} has the same bits as uninterrupted training"
    words = [f"{count(len(tested), 'restore')}, continued to step {certificate.steps}: {equal}"]
    if len(tested) < all_of:
        words.append(f"After {all_of - len(tested)} of {all_of} interruptions nothing was resumed")
    sampled = [verdict for verdict in tested if verdict.outcome == "sampled" and certificate.interrupted]
    return ". ".join([*words, *(capitalise(describe_verdict(verdict)) for verdict in sampled[:1])])
