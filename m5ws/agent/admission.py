"""The admission of a node's ranks: they are launched, and wait until their environment is known to fit.

Nothing of an attempt is published before. Processes that end without an observation, such as a launcher with a wrong
option, leave no attempt.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.agent import stop
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.filesystem import write_atomically
from m5ws.launch.interface import LaunchFailed, Process
from m5ws.progress import Progress, report
from m5ws.records import codec
from m5ws.records.environment import Observed, Origin, same_image
from m5ws.records.launch import ADMITTED, OBSERVED, Admission, LocalInstall
from m5ws.repository.references import snapshots
from m5ws.snapshot import local_installs
from m5ws.work import directories

_POLL_S = 0.01
_BUILDING = "preparing DeepSpeed's operators; the first time in an environment, they are compiled for minutes"
_LINES = 20

Accept = Callable[[Observed, Mapping[str, Observed]], None]
"""Called with the environment of a node, and of the other nodes by their names, before the attempt begins. Raises an
error to refuse it.
"""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of an attempt whose ranks wait, and the environment that the first rank observed."""

    process: Process
    observed: Observed


@contextmanager
def launched(
    ports: Ports,
    plan: AttemptPlan,
    accept: Callable[[Observed], None],
    progress: Progress | None,
    poll: Callable[[], None],
) -> Iterator[Waiting]:
    """Launch the processes, and yield them if their environment is accepted. None is left after the block.

    `accept` raises an error to refuse the environment. Raises LaunchFailed, and as `accept`. Then the logs are left,
    and no work directory.
    """
    report(progress, _BUILDING if plan.request.prepare else "starting the processes")
    process = None
    try:
        process = ports.launcher.launch(plan.request)
        report(progress, "observing the environment in the first rank")
        observed = _await_observation(plan, process, poll)
        observed = msgspec.structs.replace(observed, facts={**observed.facts, **process.facts()})
        accept(observed)
    except BaseException:
        stop.early(process)
        directories.remove(plan.directory)
        raise
    try:
        yield Waiting(process=process, observed=observed)
    finally:
        stop.early(process)


def _await_observation(plan: AttemptPlan, process: Process, poll: Callable[[], None]) -> Observed:
    """Return the environment that the first rank observed. Raises LaunchFailed."""
    path = Path(plan.context.spool_dir, OBSERVED)
    while not path.exists():
        status = process.poll()
        if status is not None and not path.exists():
            raise _not_started(plan, status)
        poll()
        time.sleep(_POLL_S)
    return codec.decode(path.read_bytes(), Observed, str(path))


def permit(ports: Ports, plan: AttemptPlan, observed: Observed) -> None:
    """Let the ranks begin the script, with a list of the distributions that no snapshot contains.

    The image that the snapshot pins also pins its distributions, if the runtime or its engine states this image.
    """
    image = snapshots.load(ports.repo, plan.run.snapshot).declared.image
    is_pinned = same_image(image, observed.facts.get("container.image"))
    origins: Mapping[str, Origin] = {} if is_pinned else observed.origins or {}
    refused = local_installs.local(origins, ports.allow_local)
    installs = tuple(
        LocalInstall(name=name, kind=origin.kind, url=origin.url, allowed=name not in refused)
        for name, origin in local_installs.local(origins, ()).items()
    )
    admission = codec.encode(Admission(local_installs=installs))
    # From here on, the script runs.
    write_atomically(Path(plan.context.spool_dir, ADMITTED), admission)


def _not_started(plan: AttemptPlan, status: int) -> LaunchFailed:
    """Return the error with the last output of the processes."""
    paths = (Path(plan.request.log), Path(plan.context.log_dir, "rank-0.log"))
    texts = (path.read_text(errors="replace") for path in paths if path.exists())
    output = "\n".join(line for text in texts for line in text.splitlines()[-_LINES:])
    return LaunchFailed(
        f"`{plan.run.spec.command[0]}` ended with status {status} before the script began:\n"
        f"{secret_scan.masked(output)}".rstrip(),
        hint="The run has not begun. Correct the command or the environment, and repeat.",
    )
