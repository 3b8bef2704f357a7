"""Record of a script's output files."""

from typing import Annotated

import msgspec

from m5ws.records.base import Count, Digest, Record, RunId


class OutputFiles(Record, tag="outputs/1", frozen=True, kw_only=True, omit_defaults=True):
    """Files that a script wrote, linked to their run, snapshot and attempt; they belong to no step.

    `moment` is the end of their name: `final` at the end of the attempt, or the number of a copy made while it ran.
    `content` has all complete files. `resume` has those that a resume gets, if they are others: earlier ones in place
    of files that were incomplete at that moment. `modified_s` has the modification times of these files, in order of
    their paths, in s since the epoch (0: unknown): scripts search for the newest checkpoint by them. `folders` has the
    empty folders that a resume gets.
    """

    run: RunId
    snapshot: Digest
    attempt: Count
    moment: Annotated[str, msgspec.Meta(pattern=r"\A([0-9]{6,}|final)\Z")]
    content: Digest
    resume: Digest | None = None
    modified_s: tuple[float, ...] = ()
    folders: tuple[bytes, ...] = ()
