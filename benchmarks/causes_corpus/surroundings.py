"""Lines around a failure: healthy lines before it, prefixes of launchers, and the errors of ranks that follow."""

import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from texts import Fields

_TEXTS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "surroundings.toml").read_text())
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def progress(rng: random.Random, count: int) -> list[str]:
    """Return lines of healthy steps in the style of one program."""
    style, step, minute = rng.choice(_TEXTS["steps"]), rng.randint(1, 900) * 10, rng.randint(0, 59)
    return [
        style.format(step=step + 10 * k, loss=3.1 - k / 100, m=minute, s=(7 * k) % 60, f=(137 * k) % 1000)
        for k in range(count)
    ]


def before(rng: random.Random, fields: Fields) -> list[str]:
    """Return the healthy end of a log before a failure."""
    lines = progress(rng, rng.randint(0, 5))
    for _ in range(rng.randint(0, 2)):
        lines.insert(rng.randint(0, len(lines)), fields.fill(rng.choice(_TEXTS["noise"])))
    return lines


def prefix(rng: random.Random, fields: Fields) -> Callable[[str], str]:
    """Return a function that puts the prefix of a launcher before each line of a text."""
    start = fields.fill(rng.choice(_TEXTS["prefixes"]))
    return lambda text: "\n".join(start + line for line in text.split("\n")) if start else text


def follower(kind: str, rng: random.Random, fields: Fields) -> str:
    """Return the end of the log of a rank that failed because another rank did."""
    return fields.fill(rng.choice(_TEXTS["followers"][kind]))


def kinds() -> list[str]:
    """Return the kinds of followers."""
    return list(_TEXTS["followers"])


def launcher(status: int, rank: int, rng: random.Random) -> str:
    """Return the end of the log of torchrun on the node of a failed rank."""
    name = _SIGNALS.get(-status)
    trace = (
        f"Signal {-status} ({name}) received by PID @{{pid2}}"
        if name
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    fixed = {"exitcode": str(status), "rank": str(rank), "locals": str(rank % 8), "trace": trace}
    return Fields(rng, fixed).fill(_TEXTS["launcher"])
