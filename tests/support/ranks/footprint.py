"""The footprint of a process and its children while they run: private memory, file descriptors, threads."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec


class Held(msgspec.Struct, frozen=True):
    """The footprint of a process after `at` checkpoints."""

    at: int
    memory_bytes: int
    descriptors: int
    threads: int


class Footprints:
    """Samples of all processes below a root process, by role."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.of: dict[str, list[Held]] = defaultdict(list)

    def sample(self, at: int) -> None:
        """Sample all processes now; processes that end meanwhile are left out."""
        for pid in _tree(self._root):
            with suppress(OSError, KeyError):
                self.of[_role(pid)].append(_held(pid, at))

    def window(self, role: str, first: int, last: int) -> Held:
        """Return the medians of a role's footprint between checkpoints `first` and `last`, and its maxima.

        Files and threads come and go: their maximum counts.
        """
        held = [one for one in self.of[role] if first <= one.at <= last]
        return Held(
            at=last,
            memory_bytes=int(statistics.median(one.memory_bytes for one in held)),
            descriptors=max(one.descriptors for one in held),
            threads=max(one.threads for one in held),
        )


def _held(pid: int, at: int) -> Held:
    folder = Path(f"/proc/{pid}")
    said = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    return Held(
        at=at,
        memory_bytes=1024 * int(said["RssAnon"].split()[0]),
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(said["Threads"]),
    )


def _tree(root: int) -> Iterable[int]:
    """Yield a process and its descendants."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())


def _role(pid: int) -> str:
    """Return the role of a process of `m5ws run`, from its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    if "torch.distributed.run" in words:
        return "launcher"
    if "m5ws.training.rank" in words:
        return "rank"
    return "supervisor" if "run" in words else "other"
