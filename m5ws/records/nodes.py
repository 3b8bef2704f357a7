"""Messages between the nodes of an attempt. They are not stored."""

from m5ws.records.base import CheckpointName, Count, Digest, Record
from m5ws.records.environment import Observed
from m5ws.records.launch import Context
from m5ws.records.ledger import RankEnded
from m5ws.records.run import Run
from m5ws.records.stacks import NodeEvidence, RankStack


class Hello(Record, tag="hello", frozen=True, kw_only=True):
    """A follower greets its leader. Both were started by the same `job`."""

    node: Count
    host: str
    job: str | None


class Planned(Record, tag="planned", frozen=True, kw_only=True):
    """The leader's plan: the run, the context of its ranks, and the checkpoints that count, of which it resumes the
    last.

    Paths in the context are the leader's. `outputs` has the names of the output files that each node restores, if any.
    """

    run: Run
    context: Context
    inherits: tuple[CheckpointName, ...] = ()
    outputs: tuple[str, ...] = ()


class Ready(Record, tag="ready", frozen=True, kw_only=True):
    """The ranks of a follower wait, in an `observed` environment."""

    observed: Observed


class Begun(Record, tag="begun", frozen=True, kw_only=True):
    """The attempt is in the ledger, and the ranks may begin the script."""


class Alive(Record, tag="alive", frozen=True, kw_only=True):
    """A sign of life."""


class Stop(Record, tag="stop", frozen=True, kw_only=True):
    """The processes of all nodes end, by a `signal`, with this time in seconds. A follower asks, the leader orders."""

    grace_s: float
    signal: int


class Inexact(Record, tag="inexact", frozen=True, kw_only=True):
    """A rank of a follower repeated a step with other values, and `[run] inexact` is `stop`."""

    problem: str


class Suspected(Record, tag="suspected", frozen=True, kw_only=True):
    """A rank of a follower makes no progress."""


class TakeStacks(Record, tag="take-stacks", frozen=True, kw_only=True):
    """The leader asks for the stacks of all ranks of a follower."""


class Reported(Record, tag="reported", frozen=True, kw_only=True):
    """The stacks of all ranks of a node that run, and its other evidence."""

    ranks: tuple[RankStack, ...]
    node: NodeEvidence | None = None


class Storing(Record, tag="storing", frozen=True, kw_only=True):
    """The processes of a follower have ended, and it stores their results, which may take long."""


class Ended(Record, tag="ended", frozen=True, kw_only=True):
    """The processes of a follower have ended.

    `request` and `problem` are as in `NodeEnd`. `unsaved` is the reason if the store did not take all events and
    results, which the node delivers later. `heads` has the head of each of its ranks, `ranks` their ends, and
    `statuses` the statuses of ranks that recorded no end.
    """

    exit_code: int
    request: str | None = None
    problem: str | None = None
    unsaved: str | None = None
    heads: dict[str, Digest] = {}
    ranks: tuple[RankEnded, ...] = ()
    statuses: dict[str, int] = {}


class Closed(Record, tag="closed", frozen=True, kw_only=True):
    """The end of the attempt is written, with its exit status."""

    exit_code: int


Message = (
    Hello
    | Planned
    | Ready
    | Begun
    | Alive
    | Stop
    | Inexact
    | Suspected
    | TakeStacks
    | Reported
    | Storing
    | Ended
    | Closed
)
LARGEST_BYTES = 2**26
"""The largest message: an environment names some thousand distributions."""
