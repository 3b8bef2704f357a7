"""`kill_at_step.py N MARK script.py`: run a script, and kill rank 0 after its Nth step, once, while MARK exists."""

import os
import runpy
import signal
import sys
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

last, mark = int(sys.argv[1]), Path(sys.argv[2])
del sys.argv[:3]
count = 0


def kill(*_: object) -> None:
    global count  # noqa: PLW0603
    count += 1
    if count == last and mark.exists() and os.environ.get("RANK", "0") == "0":
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(kill)
runpy.run_path(sys.argv[0], run_name="__main__")
