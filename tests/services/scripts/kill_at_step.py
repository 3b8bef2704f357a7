"""`kill_at_step.py N MARK script.py`: run a script, and kill rank 0 after its Nth step, once, while MARK exists."""

import os
import runpy
import signal
import sys
from pathlib import Path

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

last, mark = int(sys.argv[1]), Path(sys.argv[2])
del sys.argv[:3]
updates = dict[int, int]()


def kill(optimizer: Optimizer, *_: object) -> None:
    # An optimizer may contain another one, and call it.
    updates[id(optimizer)] = updates.get(id(optimizer), 0) + 1
    if updates[id(optimizer)] == last and mark.exists() and os.environ.get("RANK", "0") == "0":
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(kill)
runpy.run_path(sys.argv[0], run_name="__main__")
