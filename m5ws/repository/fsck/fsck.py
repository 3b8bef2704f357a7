"""Checks every reference, every record and every object, and lists the runs and snapshots that damage affects.

A store is clean if each object has the content that its name requires, and everything named by a reference exists.
Unreferenced objects are not damage: a killed writer leaves them, and a repeated command uses them.
"""

from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.repository import gc_plans
from m5ws.repository.fsck.damage import Damage, FsckReport, Trouble
from m5ws.repository.fsck.objects import Holdings
from m5ws.repository.fsck.records import Records
from m5ws.repository.fsck.references import FOREIGN, References
from m5ws.repository.objects import key
from m5ws.repository.repository import Repository

_LOOKS = 4


def check(repo: Repository, progress: Progress | None = None, *, read_data: bool = False) -> FsckReport:
    """Check the whole store and return a report; with `read_data`, read every byte of every object.

    Damage raises no error. Raises M5Error if the store does not respond. Objects deleted by gc during the check look
    damaged, so if gc was running, the check is repeated.
    """
    say = progress or (lambda *_: None)
    for _ in range(_LOOKS - 1):
        state = gc_plans.read_states(repo.store)
        report = _check_once(repo, say, read_data)
        if report.clean or (not state.executing and gc_plans.read_states(repo.store) == state):
            return report
    return _check_once(repo, say, read_data)


def _check_once(repo: Repository, progress: Progress, read_data: bool) -> FsckReport:
    records = Records(repo.objects)
    references = References(repo, records)
    references.read(progress)
    holdings = Holdings(repo, records, read_data=read_data)
    holdings.check(progress)
    needed = records.needed
    damage = [*references.damage, *_damage(references, records, holdings, needed)]
    return FsckReport(
        clean=not damage,
        objects=len(holdings.sizes),
        size_bytes=sum(holdings.sizes.values()),
        read_objects=len(holdings.read),
        read_bytes=sum(holdings.sizes[digest] for digest in holdings.read),
        vouched=holdings.vouched(),
        distrusted=holdings.distrusted,
        snapshots=len(references.snapshots),
        runs=len(references.runs),
        unreachable=len(holdings.sizes.keys() - needed),
        damage=tuple(sorted(damage, key=lambda damage: damage.key)),
    )


def _damage(references: References, records: Records, holdings: Holdings, needed: set[Digest]) -> list[Damage]:
    """Return the damage of objects, one item per object, each with the snapshots and runs that need it."""
    damage = [Damage(kind="foreign", key=where, detail=FOREIGN) for where in holdings.foreign]
    dangling = set[Digest]()
    for where, root, digest, _ in references.checkpoints:
        if digest not in holdings.sizes:
            dangling.add(digest)
            detail = f"it names object {digest}, which is missing"
            damage.append(Damage(kind="dangling", key=where, detail=detail, harms=(root,)))
    absent = needed - holdings.sizes.keys() - dangling
    troubles: dict[Digest, Trouble] = dict.fromkeys(absent, ("missing", "the object does not exist"))
    troubles |= {digest: ("unreadable", why) for digest, why in records.unreadable.items() if digest in holdings.sizes}
    troubles |= holdings.bad
    for digest, (kind, detail) in troubles.items():
        damage.append(Damage(kind=kind, key=key(digest), detail=detail, harms=records.harms(digest)))
    return damage
