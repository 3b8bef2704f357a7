"""The command line: one file per verb, which parses, calls an operation and prints.

Nothing but click is imported until a verb is chosen, and a verb imports what it uses when it is called,
so that `m5ws --help` and shell completion answer at once. Only `main` here catches broadly: it is what
turns an error into its message, its hint and its exit status (docs/reference/exit-codes.md).
"""

import errno
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
    import logging

INTERRUPTED = 130
NO_READER = 141
BUG = 70
_COMPLETION = "_M5WS_COMPLETE"
"""Set by a shell that asks click for completions; click then ends with a status of its own."""
_RESOURCES = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)
"""Errors of a disk, or of a limit, whichever call meets them."""
_FILES = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
        *(errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE, errno.ETXTBSY, errno.EBUSY),
    )
)
"""Errors of a file, if they name one."""

COMMANDS = {
    "init": "Make a workspace: m5ws.toml, ignore rules, a template's files.",
    "snapshot": "Pin code, config, tokenizer, data and environment; print one digest.",
    "run": "Train from a snapshot, in isolation.",
    "reproduce": "Do a run again, and prove it is the same bit for bit.",
    "attest": "Write the verdict on a run down for others to check.",
    "verify": "Check a verdict that `m5ws attest` wrote.",
    "ls": "List snapshots and runs.",
    "show": "Show a snapshot or a run.",
    "diff": "Show what differs between two snapshots or runs.",
    "certify": "Find out whether a restore is equal to not stopping.",
    "bisect": "Find which of the changes between two runs makes their results differ.",
    "checkpoint": "List, show, compare, export and keep checkpoints.",
    "logs": "Print what the ranks of a run wrote.",
    "checkout": "Write a snapshot's files into a new directory.",
    "outputs": "Write the files that a run's script wrote into a new directory.",
    "prefetch": "Fetch what a snapshot or run needs into this machine's cache.",
    "push": "Copy snapshots and runs into another store.",
    "pull": "Copy snapshots and runs from another store into this workspace's.",
    "fsck": "Check everything in the store and name what is damaged.",
    "gc": "Delete what nothing needs: planned first, done after a grace period.",
    "ui": "Open MLflow on this workspace's runs.",
    "demo": "Snapshot, train and reproduce a small GPT, start to end.",
    "completion": "Print the completion script of a shell.",
}


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    click.echo(f"m5ws {m5ws.__version__}")
    context.exit()


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
    help="Work as if started in DIR; the workspace is looked for from there upwards.",
)
@click.option("-v", "verbose", count=True, help="Say more on stderr; twice, say everything.")
@click.option("-q", "quiet", is_flag=True, help="Say only what failed.")
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
@click.pass_context
def cli(context: click.Context, directory: Path, verbose: int, quiet: bool) -> None:
    """Training runs that can be checked: pinned, isolated, and reproduced bit for bit.

    \b
    m5ws snapshot            pin everything the run is a function of
    m5ws run                 train from it, in isolation
    m5ws reproduce RUN       do it again, and prove that it is the same
    m5ws diff A B            see what changed
    """
    import logging

    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, stream=sys.stderr, force=True)
    logging.getLogger().handlers[0].setFormatter(_formatter())


def _formatter() -> "logging.Formatter":
    """Return how a line of the log is written: its level in lower case, and nothing that controls a terminal."""
    import logging

    from m5ws.cli.terminal import output

    class Escaping(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return output.escaped(f"{record.levelname.lower()}{super().format(record)}")

    return Escaping(": %(message)s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    stdout = sys.stdout
    try:
        status = cli.main(arguments, prog_name="m5ws", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except SystemExit as end:
        if sys.stdout is not stdout:
            # click replaces stdout and ends when its reader (`head`, a pager) has left.
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
    except OSError as error:
        if not _is_of_the_system(error):
            return _report_bug()
        # The disk is full, a folder is not ours to write to: the system says what, and to which file.
        _log_where(error)
        return _report(str(error), "`m5ws -v` shows where.", M5Error.exit_code)
    except Exception:
        return _report_bug()


def _is_of_the_system(error: OSError) -> bool:
    """Return True for a condition of the machine that a user can change; other errors are bugs."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return error.errno in _RESOURCES or (error.errno in _FILES and error.filename is not None)


def _report_bug() -> int:
    """Print the traceback of the current exception."""
    import traceback

    from m5ws.cli.terminal import output

    output.warn(traceback.format_exc().rstrip())
    return _report("m5ws has a bug: it did not expect this", "Please report it with the lines above.", BUG)


def _log_where(error: OSError) -> None:
    import logging

    logging.getLogger(__name__).info("where it happened:", exc_info=error)


def _usage_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"`{context.command_path} --help` shows how." if context else ""


def _report(message: str, hint: str, status: int) -> int:
    from m5ws.cli.terminal import output

    output.echo((output.Styled("error:", "red", bold=True), f" {message}"), err=True)
    if hint:
        output.echo((output.Styled("hint:", "cyan"), f" {hint}"), err=True)
    return status
