"""Names that people type: unique prefixes of snapshot and run ids."""

from collections.abc import Sequence
from typing import Literal

from m5ws.errors import AmbiguousId, NotFound
from m5ws.repository import runs, snapshots
from m5ws.repository.repository import Repository

Kind = Literal["snapshot", "run"]


def resolve(repo: Repository, prefix: str, kinds: Sequence[Kind] = ("snapshot", "run")) -> tuple[Kind, str]:
    """Return the one snapshot or run whose id starts with `prefix`. Raises NotFound, AmbiguousId."""
    listings = {"snapshot": snapshots.ids, "run": runs.ids}
    wanted = prefix.strip().lower()
    found = [(kind, full) for kind in kinds for full in listings[kind](repo) if wanted and full.startswith(wanted)]
    exact = [match for match in found if match[1] == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise NotFound(f"there is no {' or '.join(kinds)} {prefix!r}")
    names = ", ".join(f"{kind} {full[:16]}" for kind, full in found[:6])
    raise AmbiguousId(f"{prefix!r} stands for {len(found)}: {names}{' …' if len(found) > 6 else ''}")
