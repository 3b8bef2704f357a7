"""Files that an attempt left in its work directory, because `[run] outputs` of its run does not name their folders.

A resume restores them if `[run] outputs` of m5ws.toml names their folders now.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from m5ws.records.run import Run
from m5ws.repository import outputs as stored_outputs
from m5ws.repository.repository import Repository
from m5ws.runs import inputs, recovery
from m5ws.runs.outputs import outputs, restored_outputs, saved_outputs
from m5ws.runs.outputs.outputs import Outputs


def store(repo: Repository, run: Run, attempt: int, home: Path, declared: Sequence[str]) -> Outputs:
    """Store the complete files in the folders `declared` as the output files of a run's newest attempt, which ended.

    Return these files if a resume gets some of them, and the other files of the attempt. If it has not run in `home`,
    the workspace's `.m5ws`, there are none. Raises M5Error, OSError.
    """
    directory = home / "runs" / run.id / f"{attempt:04d}"
    work = Path(os.path.realpath(directory / "work"))
    given = inputs.load(directory, work) if work.is_dir() else None
    if given is None or not recovery.is_own(repo, run.id, attempt, directory):
        return Outputs(files=(), not_kept=())
    written = outputs.collect(work, declared, given.stamps, given.begun_ns)
    files = written.files
    if stored_outputs.name(attempt) not in stored_outputs.names(repo, run.id):
        spec = msgspec.structs.replace(run.spec, outputs=tuple(declared))
        saved_outputs.publish(repo, msgspec.structs.replace(run, spec=spec), attempt, files, work)
    if restored_outputs.newest_to_restore(repo, run.id) is None:
        files = ()
    return Outputs(files=files, not_kept=written.not_kept)
