"""Records of jobs, which engines start, and of requests to cancel a run. No I/O here."""

from typing import Literal

from m5ws.records.base import Count, KeyedRecord, RunId

EngineName = Literal["slurm", "hosts", "batch", "kubernetes", "skypilot", "dstack"]


class Job(KeyedRecord, tag="job/1", frozen=True, kw_only=True):
    """A job of an engine, which starts agents for a run. It is published before its submission.

    `run` is a run, or the snapshot for `m5ws certify`. `name` is the name of the job in the engine, too: a submission
    that was killed leaves no job that nobody finds. `cluster` is the name in `[clusters]`. `settings`: the `m5ws.toml`
    of the submitter as JSON, from which an agent makes its workspace. `script` is the rendered job. With `command`, the
    job runs this command of m5ws on one node, and no attempt of the run. `options` are options of its agents.
    """

    run: RunId
    name: str
    cluster: str
    engine: EngineName
    nodes: Count
    settings: str
    script: str
    created_s: float
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    user: str | None = None
    host: str | None = None


class Cancel(KeyedRecord, tag="cancel/1", frozen=True, kw_only=True):
    """A request to end the newest attempt of a run (0: none has begun), and to begin none in these jobs.

    `problem`: why the agent on `host` could not begin, if an agent made the request. `next`: the job in another region
    that takes the place of its one job, if `m5ws wait` made the request.
    """

    run: RunId
    attempt: Count
    jobs: tuple[str, ...] = ()
    created_s: float = 0.0
    user: str | None = None
    host: str | None = None
    problem: str | None = None
    next: str | None = None
