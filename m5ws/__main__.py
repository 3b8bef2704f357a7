"""The program: `m5ws`, and `python -m m5ws`."""

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_COLLECT_AFTER = 100_000
"""Objects made and kept before a collection; Python's own is 700."""
_INTERRUPTED = 130
"""As `m5ws.cli` ends, which may not be imported yet (docs/reference/exit-codes.md)."""


def program() -> int:
    """As `main`, for a process that ends with it."""
    status = _ahead()
    if status == 0:
        # There is nothing that Python would have to put in order, which takes milliseconds.
        os._exit(status)
    if status is None:
        status = _whole()
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
    status = _ahead()
    return _whole() if status is None else status


def _ahead() -> int | None:
    """Prepare this process, and return an exit status if nothing is left to do."""
    # A short command keeps nearly all that it makes: Python's collector looks for garbage in vain.
    gc.set_threshold(_COLLECT_AFTER)
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _open_standard_streams()
    try:
        if sys.argv[1:2] == ["snapshot"] and not {"-h", "--help"}.intersection(sys.argv) and _answered_ahead():
            return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return None


def _whole() -> int:
    try:
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


def _answered_ahead() -> bool:
    """Have git look at the workspace while Python imports the rest; return whether the rest is not needed."""
    from m5ws import place
    from m5ws.adapters import git_start

    try:
        root = place.nearest(os.getcwd())
    except FileNotFoundError:
        # The folder that this was started in is gone.
        return False
    if root is None:
        return False
    if len(sys.argv) != 2:
        git_start.begin_ahead(root, os.environ)
        return False
    from m5ws import again

    # What may take longest first.
    noted = again.Again(os.path.join(root, place.STATE))
    looking = git_start.begin_ahead(root, os.environ)

    def said() -> "Iterable[bytes] | None":
        found = looking.said() if looking is not None else None
        return None if found is None else found[0]

    answer = noted.answer(sys.argv[1:], said)
    if answer is None:
        return False
    try:
        os.write(2, answer.err)
        os.write(1, answer.out)
    except OSError:
        # Nobody reads, or the disk is full: the whole command says what is to be said of that.
        return False
    return True


if __name__ == "__main__":
    sys.exit(program())
