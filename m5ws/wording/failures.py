"""Sentences of failures and ends of attempts."""

import signal
from collections.abc import Iterator, Mapping

from m5ws.records.failure import EndReason, Failure

ENDS = {
    "status": "the ranks ended with status {status} without an error",
    "stopped": "stopped by {signal}",
    "superseded": "superseded by attempt {attempt} on {host}",
    "enough steps": "stopped by m5ws, because no more steps were needed",
    "fork not restored": "the script did not restore the fork's checkpoint, because it uses no m5ws.session",
    "killed for a test": "killed after step {step}, to test the resume",
    "supervisor killed": "the supervisor was killed",
    "cancelled": "cancelled from {host}",
}
"""Sentences by kind. The sentence of any other kind is its problem."""


def describe_end(reason: EndReason) -> str:
    """Return the reason of an attempt's end; of failed ranks, the dead ranks and the first recorded failure."""
    if reason.kind != "ranks failed":
        sentence = ENDS.get(reason.kind, "{problem}")
        return sentence.format(**{name: getattr(reason, name) for name in reason.__struct_fields__})
    words = list(_describe_dead(reason.dead))
    if reason.failure is not None:
        rank = "" if reason.rank is None else f" (rank {reason.rank})"
        words.append(f"{describe_failure(reason.failure)}{rank}")
    return "; ".join(words)


def describe_failure(failure: Failure) -> str:
    """Return a failure with its place."""
    if failure.signal is not None:
        return f"stopped by {_name_signal(failure.signal)}"
    if failure.status is not None:
        return f"exit status {failure.status}"
    worker = f", loader worker {failure.worker}" if failure.worker is not None else ""
    place = f" ({failure.place}{worker})" if failure.place is not None else ""
    return f"{': '.join(filter(None, (failure.type, failure.text)))}{place}"


def _describe_dead(dead: Mapping[str, int]) -> Iterator[str]:
    for status in dict.fromkeys(dead.values()):
        ranks = sorted(int(rank) for rank, each in dead.items() if each == status)
        named, was = (f"ranks {', '.join(map(str, ranks))}", "were") if len(ranks) > 1 else (f"rank {ranks[0]}", "was")
        memory = " (the kernel does so if memory is used up: see `dmesg`)" if status == -signal.SIGKILL else ""
        killed = f"{was} killed by {_name_signal(-status)}{memory}"
        yield f"{named} {killed if status < 0 else f'ended with status {status} without an error'}"


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
