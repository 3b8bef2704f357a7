"""`kill_at_step.py N MARK script.py`: run a script, and kill rank 0 at its Nth step, once, while MARK exists.

MARK has words: a signal (SIGKILL), a moment (`after` the optimizer's step, `before` it, or in the next `forward` pass),
and `all` for the processes between this process and `m5ws` too.
"""

import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

# DeepSpeed's launcher puts an option before the arguments of its script.
of_launcher = [word for word in sys.argv if word.startswith("--local_rank=")]
given = [word for word in sys.argv[1:] if word not in of_launcher]
last, mark = int(given[0]), Path(given[1])
sys.argv[:] = [given[2], *of_launcher, *given[3:]]
# m5ws records a file that is read, and misses it at a resume.
words = mark.read_text().split() if mark.exists() and mark.stat().st_size else []
number = next((signal.Signals[word] for word in words if word.startswith("SIG")), signal.SIGKILL)
moment = next((word for word in words if word in ("before", "forward")), "after")
updates = dict[int, int]()


def processes() -> Iterator[int]:
    if "all" in words:
        pid = os.getpid()
        while b"m5ws" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            yield pid
    yield os.getpid()


def kill(now: str) -> None:
    is_due = now == moment and max(updates.values(), default=0) == last and os.environ.get("RANK", "0") == "0"
    if is_due and mark.exists():
        mark.unlink()
        for pid in list(processes()):
            os.kill(pid, number)


def before(optimizer: Optimizer, *_: object) -> None:
    # An optimizer may contain another optimizer, and call it.
    updates[id(optimizer)] = updates.get(id(optimizer), 0) + 1
    kill("before")


register_optimizer_step_pre_hook(before)
register_optimizer_step_post_hook(lambda *_: kill("after"))
if moment == "forward":
    register_module_forward_pre_hook(lambda *_: kill("forward"))
runpy.run_path(sys.argv[0], run_name="__main__")
