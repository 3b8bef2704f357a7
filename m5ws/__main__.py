"""The program: `m5ws`, and `python -m m5ws`."""

import gc
import os
import signal
import sys

_COLLECT_AFTER = 100_000
"""Objects made and kept before a collection; Python's own is 700."""
_INTERRUPTED = 130
"""As `m5ws.cli` ends, which may not be imported yet (docs/reference/exit-codes.md)."""


def program() -> int:
    """As `main`, for a process that ends with it."""
    status = main()
    _drop_unwritten()
    return status


def _drop_unwritten() -> None:
    """Have Python not write once more, at its end, what stdout did not take: that was reported, and has a status."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> int:
    """Run the command line and return its exit status."""
    # A short command keeps nearly all that it makes: Python's collector looks for garbage in vain.
    gc.set_threshold(_COLLECT_AFTER)
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _open_standard_streams()
    try:
        # A parent that ignores SIGCHLD hands that on, and then no child's exit status is known.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.argv[1:2] == ["snapshot"] and not {"-h", "--help"}.intersection(sys.argv):
            _begin_git()
        from m5ws.cli import main as command_line
    except KeyboardInterrupt:
        return _INTERRUPTED
    try:
        return command_line()
    finally:
        # Python looks through all modules once more before it ends, which is a tenth of a short command's time.
        gc.freeze()


def _open_standard_streams() -> None:
    """Open the streams that this was started without (`>&-`): the next files opened would be taken for them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", errors="backslashreplace", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", errors="backslashreplace", closefd=False)


def _begin_git() -> None:
    """Start git on the workspace, so that it works while Python imports the rest."""
    from m5ws.config import discovery
    from m5ws.snapshot.sources import git_start

    try:
        root = discovery.nearest(os.getcwd())
    except FileNotFoundError:
        # The folder that this was started in is gone.
        return
    if root is not None:
        git_start.begin_ahead(root, os.environ)


if __name__ == "__main__":
    sys.exit(program())
