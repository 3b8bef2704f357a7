"""Output files of a script, under their own keys: one reference each, with the digest of an `OutputFiles` record.

Their name has the attempt, the node, and `final` or the number of a copy made while the script ran. A ledger names the
final output files, and `reproduce` compares them. They belong to no step, so no run resumes or forks from them.
"""

import math
import re
from collections.abc import Sequence

from m5ws.errors import Fenced
from m5ws.records.base import Digest
from m5ws.records.outputs import OutputFiles
from m5ws.repository import bindings, publishing
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

FINAL = "final"
"""The moment of the output files from the end of an attempt."""


def prefix(run: str) -> str:
    """Return the prefix of the keys of a run's output files."""
    return f"runs/{run}/outputs/"


def key(run: str, label: str) -> str:
    """Return the key of a reference to output files."""
    return prefix(run) + label


def name(attempt: int, moment: str = FINAL, node: int = 0) -> str:
    """Return the name of the output files of a node of an attempt."""
    return f"{attempt:04d}-{node}-{moment}"


def is_name(text: str) -> bool:
    """Return True if `text` has the form of a name of output files."""
    return re.fullmatch(r"[0-9]{4,}-[0-9]+-([0-9]{6,}|final)", text) is not None


def is_final(label: str) -> bool:
    """Return True if a name is of output files from the end of an attempt."""
    return label.endswith(FINAL)


def names(repo: Repository, run: str) -> list[str]:
    """Return the names of a run's output files, oldest first. Final output files come after the copies of their
    attempt.
    """
    return sorted((label for label in repo.store.names(prefix(run)) if is_name(label)), key=_place)


def at(labels: Sequence[str], label: str) -> tuple[str, ...]:
    """Return the names of the output files of one moment, in the order of nodes.

    They are the newest of each node of the attempt, up to the moment of `label`. `labels` are sorted as by `names`.
    """
    attempt, moment, _ = _place(label)
    earlier = [each for each in labels if attempt_of(each) == attempt and _place(each)[1] <= moment]
    newest = {node_of(each): each for each in earlier}
    return tuple(newest[node] for node in sorted(newest))


def superseded(labels: list[str]) -> list[str]:
    """Return the copies that a newer copy of their attempt and node replaces.

    Final output files are evidence, and are kept. The newest copy stays beside the final files: a kill may have cut
    these, and `--at` restores the copy.
    """
    copies = [label for label in sorted(labels) if not is_final(label)]
    newest = {label.rpartition("-")[0]: label for label in copies}
    return [label for label in copies if label != newest[label.rpartition("-")[0]]]


def attempt_of(label: str) -> int:
    """Return the attempt in a name."""
    return int(label.partition("-")[0])


def node_of(label: str) -> int:
    """Return the node in a name."""
    return int(label.split("-")[1])


def _place(label: str) -> tuple[int, float, int]:
    """Return the attempt, the moment and the node in a name, to sort by. The final moment is the last."""
    moment = label.rpartition("-")[2]
    return attempt_of(label), math.inf if moment == FINAL else int(moment), node_of(label)


def find(repo: Repository, run: str, label: str) -> tuple[Digest, OutputFiles]:
    """Return a record and its digest, checked against its key. Raises NotFound, CorruptObject, Misplaced."""
    return bindings.files(repo.objects, key(run, label))


def publish(repo: Repository, files: OutputFiles) -> Digest:
    """Publish output files whose content is durable, and return their record's digest.

    Raises Fenced if a newer attempt has started, or if other files have this name; raises Removed, ObjectDeleted.
    """
    if max(ledger.attempts(repo, files.run), default=0) > files.attempt:
        raise Fenced(f"attempt {files.attempt} of run {files.run} was superseded")
    where = key(files.run, name(files.attempt, files.moment, files.node))
    record = repo.objects.put_record(files)
    publishing.publish_record(repo, where, record, OutputFiles, run=files.run)
    return record
