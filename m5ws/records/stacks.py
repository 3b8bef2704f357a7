"""Evidence about ranks that make no progress: their Python stacks, their last collectives, their nodes. No I/O here."""

from m5ws.records.base import Count, Record


class Frame(Record, frozen=True, kw_only=True):
    """A frame of a Python stack. The path of a file in the run's work directory is relative."""

    file: str
    line: int
    function: str


class Collective(Record, frozen=True, kw_only=True):
    """The collective of a group at which a rank is, by torch's flight recorder: the first that is not completed.

    If all are completed, it is the last. `number` counts the collectives of the `group`, on all of its ranks alike.
    `state`: "scheduled", "started" or "completed". `sizes` are of the inputs.
    """

    group: str
    number: Count
    name: str
    state: str
    sizes: tuple[tuple[int, ...], ...] = ()


class RankStack(Record, frozen=True, kw_only=True):
    """A rank at one moment: its process, its progress, and the stack of its main thread, innermost frame first.

    `step` is its last completed step, `phase` its present phase. It made no progress for `waited_s`, and `is_late` if
    that is longer than `limit_s`. `state` is the kernel's letter for the process, such as T (stopped), or "gone"; None
    if it is unknown. `wchan` is the function of the kernel in which it sleeps. `problem`: why `frames` is empty.
    `collectives` has one for each group, unfinished before completed. `unrecorded`: why there are none.
    """

    rank: Count
    host: str
    pid: int
    step: int
    phase: str
    waited_s: float
    limit_s: float
    is_late: bool
    state: str | None = None
    wchan: str | None = None
    frames: tuple[Frame, ...] = ()
    problem: str | None = None
    collectives: tuple[Collective, ...] = ()
    unrecorded: str | None = None


class NodeEvidence(Record, frozen=True, kw_only=True):
    """Lines about the node of ranks that make no progress. `gpus` are as nvidia-smi prints them.

    `problems`: why a part is missing.
    """

    host: str
    kernel: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
