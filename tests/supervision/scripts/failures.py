"""Real failures: `python -m tests.supervision.scripts.failures FOLDER CASE…` writes FOLDER/CASE/LOG.log for each case.

The name of a case begins with the class of its cause. Each case runs in a forked process of its own, so that all cases
with torch import it once. Only the cases of `torch_failures` import torch.
"""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.supervision.scripts import plain_failures

AT_ONCE = 3


def _log(folder: Path, case: str, name: str, function: Callable[[], None]) -> int:
    """Run a function in a new process whose output is a log, and return its process id."""
    if pid := os.fork():
        return pid
    path = folder / case / f"{name}.log"
    path.parent.mkdir(exist_ok=True)
    os.chdir(path.parent)
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        function()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001
        # As Python does at the end of a process: torch has set a hook of its own.
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ranks(folder: Path, case: str, function: Callable[[int], None]) -> Callable[[], None]:
    """Return a function that runs two ranks, and returns when both have ended."""

    def both() -> None:
        for pid in [_log(folder, case, str(rank), lambda rank=rank: function(rank)) for rank in (0, 1)]:  # type: ignore[misc]
            os.waitpid(pid, 0)

    return both


def main(folder: Path, cases: list[str]) -> None:
    functions = dict(plain_failures.CASES)
    ranks: dict[str, Callable[[int], None]] = {}
    launchers: dict[str, Callable[[], None]] = {}
    if not set(cases) <= set(functions):
        module = importlib.import_module("tests.supervision.scripts.torch_failures")
        functions |= module.CASES
        ranks, launchers = module.RANKS, module.LAUNCHERS
    running: set[int] = set()
    for case in cases:
        if len(running) == AT_ONCE:
            running.discard(os.wait()[0])
        if case in ranks:
            running.add(_log(folder, case, "both", _ranks(folder, case, ranks[case])))
        elif case in launchers:
            running.add(_log(folder, case, "launcher", launchers[case]))
        else:
            running.add(_log(folder, case, "0", functions[case]))
    while running:
        running.discard(os.wait()[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
