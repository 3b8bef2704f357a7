"""Processes of a run on this machine, of all nodes."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def find(run: str) -> dict[tuple[str, int], list[int]]:
    """Return the processes of a run by (kind, node); kinds are starts, agent, launcher and rank."""
    found: dict[tuple[str, int], list[int]] = {}
    for pid, words, variables in _all():
        context = variables.get("M5WS_CONTEXT", "")
        if run in words or run in context:
            kind, scratch = _kind(words), re.search(r"/node-(\d+)/", context)
            node = scratch[1] if scratch else variables.get("M5WS_NODE") or variables.get("SLURM_NODEID") or "-1"
            found.setdefault((kind, int(node)), []).append(pid)
    return found


def commands(run: str) -> list[str]:
    """Return the commands that belong to a run and still run on this machine, of agents, launchers and ranks."""
    return [
        " ".join(words)
        for _, words, variables in _all()
        if (run in words or run in variables.get("M5WS_CONTEXT", "")) and Path(words[0]).name != "srun"
    ]


def _all() -> Iterator[tuple[int, list[str], dict[str, str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            texts = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            yield int(folder.name), words, dict(text.partition("=")[::2] for text in texts)


def _kind(words: list[str]) -> str:
    if not Path(words[0]).name.startswith("python") or any(word.endswith("reaper.py") for word in words):
        return "other"
    if "m5ws.engines.starts" in words:
        return "starts"
    if "agent" in words:
        return "agent"
    if "torch.distributed.run" in words:
        return "launcher"
    return "rank" if "m5ws.training.rank" in words else "other"
