"""Resolution of id prefixes, and of names of runs, that users type."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from m5ws.errors import AmbiguousId, NotFound
from m5ws.repository import removals
from m5ws.repository.objects import is_digest
from m5ws.repository.references import runs, snapshots
from m5ws.repository.repository import Repository

_RUN_ID = re.compile("[0-9a-f]{12}")
Kind = Literal["snapshot", "run", "sweep"]


def resolve(repo: Repository, prefix: str, kinds: Sequence[Kind] = ("snapshot", "run")) -> tuple[Kind, str]:
    """Return the only object of these kinds with an id that starts with `prefix`. Raises NotFound, AmbiguousId.

    If there is none, the prefix may be the whole name of a run, whatever the case. A whole id needs no listing of all
    snapshots or runs.
    """
    if (whole := _find_whole(repo, prefix.strip().lower(), kinds)) is not None:
        return whole, prefix.strip().lower()
    listings = {"snapshot": snapshots.ids, "run": runs.ids, "sweep": runs.sweeps}
    wanted = prefix.strip().lower()
    matches = [(kind, full) for kind in kinds for full in listings[kind](repo) if wanted and full.startswith(wanted)]
    exact = [match for match in matches if match[1] == wanted]
    if not matches and "run" in kinds and wanted:
        matches = [("run", run) for run in _named(repo, wanted)]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if not matches:
        raise NotFound(f"no {' or '.join(kinds)} matches {prefix!r}")
    names = ", ".join(f"{kind} {full[:16]}" for kind, full in matches[:6]) + (" …" if len(matches) > 6 else "")
    if not matches[0][1].startswith(wanted):
        raise AmbiguousId(
            f"{prefix!r} is the name of {len(matches)} runs, here the newest first: {names}", hint="Give the id of one."
        )
    raise AmbiguousId(f"{prefix!r} matches {len(matches)} ids: {names}")


def _find_whole(repo: Repository, wanted: str, kinds: Sequence[Kind]) -> Kind | None:
    """Return the kind of the snapshot or run with an id; None if the text is no whole id."""
    if "snapshot" in kinds and is_digest(wanted) and repo.store.names(f"snapshots/{wanted}/"):
        return "snapshot"
    if "run" in kinds and _RUN_ID.fullmatch(wanted):
        with suppress(NotFound):
            _ = repo.store.get(f"runs/{wanted}/run")
            return "run"
    return None


def _named(repo: Repository, name: str) -> list[str]:
    """Return the runs with a name, the newest first, without removed runs.

    A replay bears the name of its original, and is left out.
    """
    known, removed = runs.recorded_facts(repo), removals.removed_runs(repo)
    named = [
        run
        for run, fact in known.items()
        if (fact.name or "").strip().lower() == name and fact.reproduces is None and run not in removed
    ]
    return sorted(named, key=lambda run: -known[run].created_s)
