"""The facts of a whole log of NCCL."""

from m5ws.environment.nccl.log import NcclLog


def read(text: str) -> dict[str, str]:
    """Return the facts of a log."""
    log = NcclLog()
    log.feed(text)
    return log.facts
