"""Words of the files that a run read outside its snapshot."""

from m5ws.records.reads import ReadList
from m5ws.wording.lists import count, list_names

NAMED = 3


def describe(known: ReadList, run: str) -> str | None:
    """Return the files that no snapshot contains, the hosts, and the remedy; None if there are none."""
    parts = []
    if known.unpinned:
        names = list_names([read.path for read in known.unpinned], most=NAMED)
        least = "at least " if known.more else ""
        parts.append(f"{least}{count(len(known.unpinned), 'file')} read that no snapshot contains: {names}")
    if known.hosts:
        parts.append(f"content of {count(len(known.hosts), 'host')}: {list_names(known.hosts, most=NAMED)}")
    remedy = f" (`m5ws adopt {run}` pins files)" if known.unpinned else ""
    return f"{'; '.join(parts)}{remedy}" if parts else None
