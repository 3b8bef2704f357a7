"""The command line. Each verb is one file, which parses options, calls an operation and prints the result.

Only click is imported until a verb is chosen, and a verb imports its operation when it is called. So `m5ws --help` and
shell completion start fast. Only `main` catches all exceptions. It turns each into a message, a hint and an exit
status (docs/reference/exit-codes.md).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import m5ws
from m5ws.cli.lazy_group import LazyGroup
from m5ws.errors import M5Error

if TYPE_CHECKING:
    from m5ws.workspace import Workspace

INTERRUPTED = 130
NO_READER = 141
BUG = 70
_COMPLETION = "_M5WS_COMPLETE"
"""A shell sets this variable to ask click for completions. click then exits with its own status."""

COMMANDS = {
    "init": "Create a workspace: m5ws.toml, ignore rules, a template's files.",
    "snapshot": "Pin code, config, tokenizer, data and environment; print one digest.",
    "run": "Train from a snapshot, in isolation.",
    "resume": "Continue a run from its newest checkpoint, or a sweep.",
    "agent": "Run the part of one node in the next attempt of a run.",
    "fork": "Start a new run from a checkpoint of another run, with changes.",
    "sweep": "Start a run for each combination of values.",
    "reproduce": "Repeat a run, and prove that it is the same bit for bit.",
    "attest": "Write the verdict on a run to a file that others can check.",
    "verify": "Check a verdict written by `m5ws attest`.",
    "ls": "List snapshots and runs.",
    "consumed": "List the steps and runs that consumed a sample or a file.",
    "show": "Show a snapshot, a run or a sweep.",
    "watch": "Show a run while it goes on.",
    "notify": "Send the messages that wait on this machine.",
    "wait": "Wait for the end of a run.",
    "cancel": "End a run on any machine, after a last checkpoint.",
    "pin": "Write the versions and the image of a run into m5ws.toml.",
    "note": "Add a note to a run.",
    "adopt": "Pin files that a run read from elsewhere.",
    "diff": "Show the differences between two snapshots or runs.",
    "compare": "Compare the inputs and results of 2 to 50 runs.",
    "report": "Write one page about a run, for readers without m5ws.",
    "certify": "Test that resuming from a checkpoint gives the same bits as uninterrupted training.",
    "bisect": "Find the change between two runs that makes their results differ.",
    "checkpoint": "List, show, compare, export and keep checkpoints.",
    "logs": "Print the output of a run's ranks.",
    "cause": "Name the cause of a failure: its class, and the rank that it began on.",
    "checkout": "Write a snapshot's files to a new directory.",
    "outputs": "List a run's output files, or write them to a new directory.",
    "prefetch": "Download a snapshot or run into this machine's cache.",
    "push": "Copy snapshots and runs to another store.",
    "pull": "Copy snapshots and runs from another store to this workspace's store.",
    "doctor": "Check this machine and this workspace, with a remedy for each failure.",
    "preflight": "Check this node before a run, or the job of a snapshot at a small size.",
    "canary": "Train the first steps of a job, and compare their bits with an earlier result.",
    "fsck": "Check the whole store and list the damage.",
    "rm": "Remove runs.",
    "du": "List the bytes of runs.",
    "gc": "Delete unneeded objects: plan first, delete after a grace period.",
    "sync": "Replay a whole run into MLflow, or into another MLflow server.",
    "ui": "Open MLflow with this workspace's runs.",
}


@click.group(
    cls=LazyGroup,
    commands_by_name=COMMANDS,
    package=__name__,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "-C",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Start in DIR. m5ws looks for m5ws.toml there and in its parents.",
)
@click.option("-v", "verbose", count=True, help="Log more on stderr; -vv logs everything.")
@click.option("-q", "quiet", is_flag=True, help="Print only results and errors.")
@click.version_option(m5ws.__version__, prog_name="m5ws", message="%(prog)s %(version)s", help="Print the version.")
@click.pass_context
def cli(context: click.Context, directory: Path, verbose: int, quiet: bool) -> None:
    """Training runs that can be checked: pinned, isolated, and reproduced bit for bit.

    \b
    m5ws snapshot            pin all inputs of a run
    m5ws run                 train from the snapshot, in isolation
    m5ws reproduce RUN       repeat the run, and prove that it is the same
    m5ws diff A B            list the differences
    """
    import logging

    from m5ws.cli.terminal import log_output

    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    context.call_on_close(log_output.begin(level))


def main(arguments: Sequence[str] | None = None, workspace: "Workspace | None" = None) -> int:
    """Run the command line, in a workspace if it is given, and return its exit status."""
    stdout = sys.stdout
    try:
        status = cli.main(arguments, prog_name="m5ws", standalone_mode=False, obj=workspace)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except SystemExit as end:
        if sys.stdout is not stdout:
            # click replaces stdout and exits when its reader (`head`, a pager) has gone.
            return NO_READER
        if _COMPLETION in os.environ and isinstance(end.code, int):
            return end.code
        return _report_bug()
    except click.exceptions.NoArgsIsHelpError as nothing:
        click.echo(nothing.format_message())
        return nothing.exit_code
    except click.ClickException as error:
        return _report(error.format_message(), _usage_hint(error), error.exit_code)
    except M5Error as error:
        return _report(str(error), error.hint, error.exit_code)
    except (OSError, UnicodeError) as error:
        import logging

        from m5ws.cli import system_errors

        if (described := system_errors.describe(error)) is None:
            return _report_bug()
        logging.getLogger(__name__).info("traceback:", exc_info=error)
        return _report(*described, M5Error.exit_code)
    except Exception:
        return _report_bug()


def _report_bug() -> int:
    """Print the traceback of the current exception."""
    import traceback

    from m5ws.cli.terminal import output

    output.warn(traceback.format_exc().rstrip())
    return _report("unexpected error: this is a bug in m5ws", "Please report the lines above.", BUG)


def _usage_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"Run `{context.command_path} --help` for usage." if context else ""


def _report(message: str, hint: str, status: int) -> int:
    from m5ws.cli.terminal import output

    output.echo((output.StyledText("error:", "red", bold=True), f" {message}"), err=True)
    if hint:
        output.echo((output.StyledText("hint:", "cyan"), f" {hint}"), err=True)
    return status
