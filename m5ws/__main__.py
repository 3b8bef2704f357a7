"""The program: `m5ws`, and `python -m m5ws`."""

import gc
import os
import signal
import sys

_COLLECT_AFTER = 100_000
"""Number of new objects before a garbage collection. Python's default is 700."""
_INTERRUPTED = 130
"""The same status as in `m5ws.cli`, which may not be imported yet (docs/reference/exit-codes.md)."""


def program() -> int:
    """Run `main` in a process that ends with it."""
    status = main()
    _drop_unwritten()
    return status


def _drop_unwritten() -> None:
    """Discard output that stdout did not take. Python would report the error again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> int:
    """Run the command line and return its exit status."""
    # A short command keeps nearly all its objects, so garbage collections would only cost time.
    gc.set_threshold(_COLLECT_AFTER)
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _open_standard_streams()
    try:
        # If a parent ignores SIGCHLD, this process inherits that, and children have no exit status.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        from m5ws.cli import main as command_line
    except KeyboardInterrupt:
        return _INTERRUPTED
    try:
        return command_line()
    finally:
        # Without this, Python scans all modules at exit, which takes a tenth of a short command's time.
        gc.freeze()


def _open_standard_streams() -> None:
    """Open the standard streams that are closed (`>&-`), or the next opened files would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", errors="backslashreplace", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", errors="backslashreplace", closefd=False)


if __name__ == "__main__":
    sys.exit(program())
