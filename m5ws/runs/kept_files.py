"""Files that an attempt left in its work directory, because `[run] outputs` of its run does not name their folders.

A resume restores them if `[run] outputs` of m5ws.toml names their folders now.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.runs import inputs, recovery
from m5ws.runs.outputs import complete_files, outputs, saved_outputs
from m5ws.runs.outputs.outputs import Outputs


def store(repo: Repository, run: Run, attempt: int, home: Path, declared: Sequence[str]) -> Outputs:
    """Store the complete files in the folders `declared` as the output files of a run's newest attempt, which ended.

    Return these files, and the other files of the attempt. If it has not run in `home`, the workspace's `.m5ws`, there
    are none. Raises M5Error, OSError.
    """
    directory = home / "runs" / run.id / f"{attempt:04d}"
    work = Path(os.path.realpath(directory / "work"))
    given = inputs.load(directory, work) if work.is_dir() else None
    if given is None or not recovery.is_own(repo, run.id, attempt, directory):
        return Outputs(files=(), not_kept=())
    written = outputs.collect(work, declared, given.stamps, given.begun_ns)
    complete, _ = complete_files.select(repo, run.id, work, written.files)
    if complete:
        saved_outputs.publish(repo, run, attempt, complete)
    return Outputs(files=tuple(complete), not_kept=written.not_kept)
