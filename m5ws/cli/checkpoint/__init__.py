"""`m5ws checkpoint`: one file per verb, as in the package above."""

import click

from m5ws.cli.lazy_group import LazyGroup

COMMANDS = {
    "ls": "List the checkpoints of a run.",
    "show": "Show a checkpoint: its origin, tensors and state.",
    "diff": "Show the tensors and state that differ.",
    "export": "Write a checkpoint in a format of other tools.",
    "keep": "Keep a checkpoint for ever, despite retention rules.",
}


@click.group("checkpoint", cls=LazyGroup, commands_by_name=COMMANDS, package=__name__)
def command() -> None:
    """List, show, compare, export and keep checkpoints.

    A checkpoint is named RUN@STEP; RUN alone is the newest checkpoint of a run. RUN is a unique prefix of the run's id.
    If several attempts have a checkpoint after the same step, RUN@STEP is the newest, and RUN@STEP-ATTEMPT names each
    of the checkpoints. The full digest of a checkpoint's record names it too.

    \b
    Example:
      m5ws checkpoint ls 7c1d
      m5ws checkpoint diff 7c1d@20000 9a44@20000
    """
