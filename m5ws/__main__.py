"""The program: `m5ws`, and `python -m m5ws`."""

import gc
import os
import sys

_COLLECT_AFTER = 100_000
"""Objects made and kept before a collection; Python's own is 700."""


def main() -> int:
    """Run the command line and return its exit status."""
    # A short command keeps nearly all that it makes: Python's collector looks for garbage in vain.
    gc.set_threshold(_COLLECT_AFTER)
    if sys.argv[1:2] == ["snapshot"] and not {"-h", "--help"}.intersection(sys.argv):
        _look_ahead()
    from m5ws.cli import main as command_line

    try:
        return command_line()
    finally:
        # Python looks through all modules once more before it ends, which is a tenth of a short command's time.
        gc.freeze()


def _look_ahead() -> None:
    """Have git look at the workspace while Python imports the rest."""
    from m5ws import place
    from m5ws.adapters import git_start

    root = place.nearest(os.getcwd())
    if root is not None:
        git_start.begin_ahead(root, os.environ)


if __name__ == "__main__":
    sys.exit(main())
