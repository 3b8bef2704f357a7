"""`m5ws checkpoint`: one file per verb, as in the package above."""

import click

from m5ws.cli.lazy_group import LazyGroup

COMMANDS = {
    "ls": "List the checkpoints of a run.",
    "show": "Show a checkpoint: who made it, its tensors, its state.",
    "diff": "Say which tensors and which state differ, and by how much.",
    "export": "Write a checkpoint as files that other tools read.",
    "keep": "Keep a checkpoint for ever, whatever retention rules say.",
}


@click.group("checkpoint", cls=LazyGroup, commands_by_name=COMMANDS, package=__name__)
def command() -> None:
    """List, show, compare, export and keep checkpoints.

    A checkpoint is named RUN@STEP; RUN alone is the newest one of a run. RUN is a unique prefix of the run's id. Where
    several attempts made one after the same step, RUN@STEP is that of the newest, and RUN@STEP-ATTEMPT names any.
    The digest of a checkpoint's record, in full, names it too.

    \b
    Example:
      m5ws checkpoint ls 7c1d
      m5ws checkpoint diff 7c1d@20000 9a44@20000
    """
