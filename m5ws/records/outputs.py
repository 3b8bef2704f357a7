"""Record of a script's output files."""

from typing import Annotated

import msgspec

from m5ws.records.base import Count, Digest, Record, RunId


class OutputFiles(Record, tag="outputs/1", frozen=True, kw_only=True, omit_defaults=True):
    """The output files of a node of an attempt at one moment, linked to their run and snapshot; they belong to no step.

    `moment` is the end of their name: `final` at the end of the attempt, or the number of a copy made while it ran.
    `content` has all files, also the files behind links. A resume gets them with their modification times
    `modified_ns`, in order of their paths, in ns since the epoch, with the `folders` and their times, and with the
    `links` by path and target in place of the files behind them. `restored` has the paths that a resume restored on
    this node, and that the node did not change.
    """

    run: RunId
    snapshot: Digest
    attempt: Count
    node: Count
    moment: Annotated[str, msgspec.Meta(pattern=r"\A([0-9]{6,}|final)\Z")]
    content: Digest
    modified_ns: tuple[int, ...] = ()
    folders: tuple[tuple[bytes, int], ...] = ()
    links: tuple[tuple[bytes, bytes], ...] = ()
    restored: tuple[bytes, ...] = ()
